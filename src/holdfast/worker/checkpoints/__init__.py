"""A worker's part in checkpoints: writing its share of the state, and restoring a state."""
