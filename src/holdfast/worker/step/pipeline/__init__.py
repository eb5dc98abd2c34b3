"""Pipeline: a model whose layers are divided over the workers."""
