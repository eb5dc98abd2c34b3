"""Faults: how a test has something inject at a point inside another process, once."""

import importlib
import os


def wrap(at, when, inject):
    """Have `inject` called with the arguments of every call of `at`, `before` or `after` it.

    `at` is `module:function` or `module:Class.method`.
    """
    place, _, name = at.partition(":")
    owner = importlib.import_module(place)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    call = getattr(owner, last)

    def faulty(*arguments, **keys):
        if when == "before":
            inject(arguments)
        result = call(*arguments, **keys)
        if when == "after":
            inject(arguments)
        return result

    setattr(owner, last, faulty)


def is_first(mark):
    """Whether nobody has asked before; the file `mark` says so to all processes."""
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
