"""What workers need for process groups of torch.distributed: a store, and errors that cascade."""
