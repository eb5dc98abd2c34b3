"""Collector: imports modules without the garbage collector, and keeps it off them afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """Import without the garbage collector, and exclude the imported objects from it.

    It would scan a growing heap of modules repeatedly, which takes a quarter of the time that torch
    takes to import, and once more when the process ends. In workers it would write to, and so copy,
    pages that all of them share.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
