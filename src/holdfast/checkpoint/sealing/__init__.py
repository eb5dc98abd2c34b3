"""Sealing: the keys that sign and encrypt checkpoints, and how."""
