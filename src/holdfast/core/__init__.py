"""Pure decisions: which worker computes which shards, and in which order shards are summed.

Nothing here does I/O, reads a clock, draws a random number or knows torch.
"""
