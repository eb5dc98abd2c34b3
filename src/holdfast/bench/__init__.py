"""Benchmarks: each a module that `holdfast bench NAME` runs in a process of its own."""
