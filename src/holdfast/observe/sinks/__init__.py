"""Sinks: receive a run's progress for the terminal, files and notifications."""
