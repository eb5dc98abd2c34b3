"""Collectives: the gradients of all shards become one."""
