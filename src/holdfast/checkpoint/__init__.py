"""Checkpoints: the state of a step made durable, in parts, so that damage is always noticed.

`storage` holds files, `store` knows which of them are checkpoints, `writer` and `reader` move parts
of the state, `commit` and `retention` are what a host does with them. They know no torch and not
the run's log: they return results and events.

    exports    weights for other programs
    remote     copies in other stores
    sealing    signatures and encryption
"""
