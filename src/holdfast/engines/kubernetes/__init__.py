"""Kubernetes, as seen from a pod of a run."""
