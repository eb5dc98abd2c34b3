"""Decisions of a search for good values of a job's keys; see `holdfast.tuning`."""
