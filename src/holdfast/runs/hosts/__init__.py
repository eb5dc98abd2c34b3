"""Hosts of a run: this one, those that an engine places, those that join."""
