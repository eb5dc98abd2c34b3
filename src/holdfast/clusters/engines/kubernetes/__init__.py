"""Kubernetes: pods that exist, as hosts; and what a pod of a run writes into Kubernetes."""
