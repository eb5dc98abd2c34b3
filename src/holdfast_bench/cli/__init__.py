"""`holdfast bench`: measure this machine, and compare results."""
