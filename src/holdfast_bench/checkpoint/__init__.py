"""What checkpoints cost training, and how fast they are loaded; see `__main__`."""
