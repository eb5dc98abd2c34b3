"""Allocator: settings of glibc's malloc that a process changes for itself (mallopt(3))."""

from __future__ import annotations

import ctypes
from typing import Final

_MMAP_THRESHOLD: Final = -3
_BLOCK_BYTES: Final = 1 << 20


def return_freed_blocks() -> None:
    """Let blocks of a megabyte or more go back to the kernel when they are freed.

    Workers keep them for the next step, which is faster. But where blocks of many sizes come and go
    within a step, they end up far apart, and a worker holds several times what it uses.
    """
    ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _BLOCK_BYTES)
