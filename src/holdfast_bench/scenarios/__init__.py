"""Failure scenarios: what a run must do when something fails at a known step."""
