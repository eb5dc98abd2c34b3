"""Cost of checkpoints in training, and the speed of loading them; see `benchmark`."""
