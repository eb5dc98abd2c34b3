"""Futex: sleeps until a word of shared memory changes (futex(2)), always with a timeout."""

from __future__ import annotations

import ctypes
from typing import Final

_SYSCALL: Final = 202
"""On x86-64, whose memory ordering the arena relies on."""
_WAIT: Final = 0
_WAKE: Final = 1
_EVERYONE: Final = 2**31 - 1

_libc = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def wait(address: int, seen: int, timeout_s: float) -> None:
    """Sleep while the 32-bit word at `address` equals `seen`, for at most `timeout_s`.

    Returns on a wake, a timeout, a signal or if the word differs already: the caller checks again.
    """
    limit = _Timespec(int(timeout_s), int(timeout_s % 1 * 1e9))
    _futex(address, _WAIT, seen & 0xFFFFFFFF, ctypes.byref(limit))


def wake(address: int) -> None:
    """Wake every process that sleeps on the word at `address`."""
    _futex(address, _WAKE, _EVERYONE, None)


def _futex(address: int, operation: int, value: int, limit: object) -> None:
    _libc.syscall(
        _SYSCALL, ctypes.c_void_p(address), operation, ctypes.c_uint32(value), limit, None, 0
    )
