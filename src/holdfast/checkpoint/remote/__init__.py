"""Remote: named objects in a second store, outside of the run directory.

`objects` says what such a store can do and opens one by its URL. `directory`, `cloud` and
`file_system` are the kinds of stores; `retrying` repeats what a store could not do at once.
"""
