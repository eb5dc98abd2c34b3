"""Coordinator: keeps the membership of a run, in a journal that outlives its process."""
