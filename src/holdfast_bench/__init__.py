"""Measurements and their report, the simulator, the exactness fuzzer; a second package."""
