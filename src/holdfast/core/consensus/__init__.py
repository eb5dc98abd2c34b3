"""Consensus: which host leads a run, and the journal that its voters hold in common. Pure."""
