"""Remote: named objects in a second store, outside of the run directory.

`objects` says what such a store can do, and `open` opens one by its URL. `directory` and `cloud`
are the kinds of stores.
"""
