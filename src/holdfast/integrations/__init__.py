"""Integrations: holdfast in programs that other systems run, and libraries in a run."""
