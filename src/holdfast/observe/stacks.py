"""Stacks: where a worker is that hangs. It cannot say so itself, so the interpreter writes it down
on a signal, whatever the worker is at, into `logs/rank-N.stacks`.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

SIGNAL: Final = signal.SIGRTMAX - 1
"""A real-time signal, of which neither torch nor people make use."""
FRAMES: Final = 5
"""How many of the innermost frames are told of; the file has all."""

_ASKED: Final = "Current thread "
"""What the thread begins with that got the signal: the main one, unless that is about to end."""


def stacks_file(logs: Path, rank: int) -> Path:
    """Where worker `rank` of a run writes its stacks."""
    return logs / f"rank-{rank}.stacks"


def write_on_signal(path: Path) -> None:
    """Have SIGNAL append the stacks of all of this process's threads to a file."""
    with suppress(OSError):  # the disk is full: nobody trains for the sake of this file
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        faulthandler.register(SIGNAL, file)


def ask(pidfd: int, path: Path) -> int:
    """Have a process write its stacks; returns where in the file they will begin."""
    begin = path.stat().st_size if path.exists() else 0
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, SIGNAL)
    return begin


def innermost(path: Path, begin: int) -> list[str]:
    """The innermost frames of the main thread in what was written from `begin` on, as
    `File "mine.py", line 7 in forward`, the innermost first; none if nothing was written.
    """
    try:
        with path.open("rb") as file:
            file.seek(begin)
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    _, asked, thread = text.partition(_ASKED)
    frames = thread.partition("\n\n")[0].splitlines()[1:] if asked else []
    return [frame.strip() for frame in frames if frame.startswith("  File ")][:FRAMES]
