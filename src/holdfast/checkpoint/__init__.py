"""Checkpoints: the state of a step made durable, in parts, so that damage is always noticed.

`manifest` and `parts` know no torch; `save` and `restore` move tensors.
"""
