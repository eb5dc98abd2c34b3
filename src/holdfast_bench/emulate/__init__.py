"""Scaling beyond this machine: real coordination and transports, emulated compute, predictions."""
