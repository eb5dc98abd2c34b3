"""Sharded models (`parallel.zero`): each worker holds some rows of every tensor of the state."""
