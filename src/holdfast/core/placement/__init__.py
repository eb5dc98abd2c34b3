"""Placement of workers: shares of a host, and agents that are replaced."""
