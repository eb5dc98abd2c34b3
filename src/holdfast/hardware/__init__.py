"""Speeds of a host's hardware: measured, or known of it."""
