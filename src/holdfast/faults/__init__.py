"""Fault injection: plans, chaos and drills."""
