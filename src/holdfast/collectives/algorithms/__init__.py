"""Algorithms that add a vector over all members, in place: the textbook of all-reduce."""
