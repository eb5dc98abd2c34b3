"""Data sets, and the order in which a run walks through them."""
