"""Checks that the numbers are right: replicas, shards, kernels, hardware and software."""
