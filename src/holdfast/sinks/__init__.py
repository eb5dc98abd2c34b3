"""Sinks: where the progress of a run goes."""
