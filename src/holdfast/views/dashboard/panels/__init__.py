"""Panels: each is a function of a run's view, and can be tried without a browser."""
