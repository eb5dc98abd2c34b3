"""Pressed keys: a terminal gives each key at once, and is as before, however that ends."""

from __future__ import annotations

import os
import re
import select
import signal
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from holdfast.linux.lifeline import STOP_SIGNALS, handling

ESCAPE: Final = "\x1b"
_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.)")
"""Sequences that a terminal sends for keys such as the arrows."""
_MAX_READ: Final = 256

Keys = Callable[[float], str]
"""Waits that many seconds at most; returns the keys that were hit meanwhile."""


@contextmanager
def keys_of(fd: int) -> Iterator[Keys]:
    """While the block runs, keys are neither shown nor held back until the end of a line.

    Args:
        fd: A descriptor; if it is of no terminal, there are no keys.
    """
    if not os.isatty(fd):
        yield _no_keys
        return
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield lambda timeout_s: _read(fd, timeout_s)
    finally:
        termios.tcsetattr(fd, termios.TCSAFLUSH, before)


@contextmanager
def signals_end() -> Iterator[None]:
    """While the block runs, signals that end a process raise KeyboardInterrupt, once; the key that
    stops a process (Ctrl-Z) does nothing, as it would leave the terminal as it is.
    """

    def end(_number: int, _frame: FrameType | None) -> None:
        for each in STOP_SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    with handling(STOP_SIGNALS, end), handling([signal.SIGTSTP], signal.SIG_IGN):
        yield


def _no_keys(timeout_s: float) -> str:
    time.sleep(timeout_s)
    return ""


def _read(fd: int, timeout_s: float) -> str:
    """Raises: KeyboardInterrupt: The terminal is gone."""
    if not select.select([fd], [], [], timeout_s)[0]:
        return ""
    read = os.read(fd, _MAX_READ)
    if not read:
        raise KeyboardInterrupt
    return _SEQUENCE.sub("", read.decode(errors="replace"))
