"""Decisions on checkpoints: when to save, keep and delete them, and which one to load. Pure."""
