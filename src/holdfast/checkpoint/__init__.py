"""Checkpoints: the state of a step made durable, in parts, so that damage is always noticed.

`storage` holds files, `store` knows which of them are checkpoints, `writer` and `reader` move parts
of the state, `commit` and `retention` are what the agent of a host does with them. None of them
knows torch, a clock or the run's log: they return results and events.
"""
