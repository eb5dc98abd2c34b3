"""Lifeline: ties a process to its parent. It dies with the parent, and leaves stop signals to it,
because the terminal sends them to the whole process tree.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, `kill`, a closed terminal: each saves and ends the run."""

INTERRUPT: Final = signal.SIGRTMAX - 3
"""A real-time signal that neither torch nor users use: interrupts a worker whose user code measures
a batch of an evaluation, because the run is to stop."""

LEAVE: Final = signal.SIGURG
"""Tells an agent, or the command that has started a run, that its host leaves the run; stop signals
may be for whole process trees. Before a process has a handler, it is ignored."""

_PR_SET_PDEATHSIG: Final = 1
_ORPHANED: Final = 70
"""The exit status of a process whose parent died before it was tied to it."""


def active_stop_signals() -> list[signal.Signals]:
    """The stop signals that this process does not ignore: what nohup ignores stays ignored."""
    return [each for each in STOP_SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]


@contextmanager
def handling(
    numbers: Iterable[signal.Signals],
    handler: Callable[[int, FrameType | None], Any] | signal.Handlers,
) -> Iterator[None]:
    """Have these signals handled by `handler` while the block runs; only in the main thread."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, each in before.items():
            signal.signal(number, each)


def leave_signals_to_parent() -> None:
    """Ignore stop signals: the parent decides what to do."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def die_with_parent(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Make the kernel send this process a signal when the process `parent` dies; see prctl(2).

    To the kernel the parent is the thread that forked, so that thread must live on.

    Args:
        parent: Its process id.
        by: The signal.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:  # it died before we asked
        os._exit(_ORPHANED)
