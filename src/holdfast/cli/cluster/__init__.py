"""Commands for hosts and clusters."""
