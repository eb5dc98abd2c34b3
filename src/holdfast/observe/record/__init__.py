"""The record of a run: what its directory tells, read as it grows, and what follows from it."""
