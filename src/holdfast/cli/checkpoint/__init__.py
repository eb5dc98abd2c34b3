"""`holdfast checkpoint`: the checkpoints of a run, one module a command."""
