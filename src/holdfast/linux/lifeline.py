"""The ties between a process and the one that started it: when that dies, this one does; what asks
for an end, sent to the whole tree, is for the one at its root.
"""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, a polite kill, a closed terminal: each saves and ends the run."""

_PR_SET_PDEATHSIG: Final = 1
_ORPHANED: Final = 70
"""The exit status of a process whose parent died before the tie was made."""


def leave_signals_to_parent() -> None:
    """Let what asks for an end pass by: the parent will say what is to be done."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the process `parent` dies; see prctl(2).

    To the kernel the parent is the thread that forked, so that must be one that stays.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we asked
        os._exit(_ORPHANED)
