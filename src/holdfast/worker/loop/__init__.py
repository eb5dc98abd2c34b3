"""The training loop, and what happens between two steps."""
