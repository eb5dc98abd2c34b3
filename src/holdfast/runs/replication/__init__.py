"""Replication: the node of a host, which elects the leader of a run and keeps its journal."""
