"""Benchmarks of several hosts, which are network namespaces of this machine."""
