"""Engines: what places the agents of a run on the hosts of a cluster."""
