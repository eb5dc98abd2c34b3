"""Storms: faults on purpose, to see a run get over them."""
