"""Jobs: what users ask for, as keys in a YAML file, checked."""
