"""Process groups of torch.distributed: their store, and errors that cascade."""
