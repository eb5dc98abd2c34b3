"""Stacks: where a worker hangs. On a signal, the interpreter writes the stacks of all threads to
`logs/rank-N.stacks`, whatever the worker does.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

SIGNAL: Final = signal.SIGRTMAX - 1
"""A real-time signal that neither torch nor users use."""
FRAMES: Final = 5
"""How many of the innermost frames are reported; the file has all."""

_ASKED: Final = "Current thread "
"""Begins the section of the thread that got the signal: the main one, unless it is ending."""


def stacks_file(logs: Path, rank: int) -> Path:
    """Where worker `rank` of a run writes its stacks."""
    return logs / f"rank-{rank}.stacks"


def write_on_signal(path: Path) -> None:
    """Have SIGNAL append the stacks of all of this process's threads to a file."""
    with suppress(OSError):  # the disk is full: training matters more than this file
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        faulthandler.register(SIGNAL, file)


def request_stacks(pidfd: int, path: Path) -> int:
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
