"""Stacks: where a worker is while one hangs. On a signal, the interpreter writes its stacks to
`logs/rank-N.stacks`, whatever the worker does.

One that hangs writes those of all threads, and is killed. One that resumes writes that of its
main thread only: its other threads run meanwhile, and their stacks cannot be read safely.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

SIGNAL: Final = signal.SIGRTMAX - 1
"""A real-time signal that neither torch nor users use: for the stacks of all threads."""
MAIN_SIGNAL: Final = signal.SIGRTMAX - 2
"""Another one, for the stack of the main thread."""
FRAMES: Final = 5
"""Number of the innermost frames that are reported; the file has all."""

POLL_S: Final = 0.002
"""Interval at which files are looked at that stacks are written to."""

_ASKED: Final = re.compile(
    r"^(Current thread .*|Stack) \(most recent call first\):\n", re.MULTILINE
)
"""Begins the section of the thread that got the signal: the main one, unless it is ending."""
_OWN: Final = f'File "{Path(__file__).parents[1]}/'
"""Begins a frame of holdfast."""


def stacks_file(logs: Path, rank: int) -> Path:
    """File to which worker `rank` of a run writes its stacks."""
    return logs / f"rank-{rank}.stacks"


def write_on_signal(path: Path) -> None:
    """Have the two signals append this process's stacks to a file."""
    with suppress(OSError):  # the disk is full: training matters more than this file
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        faulthandler.register(SIGNAL, file)
        faulthandler.register(MAIN_SIGNAL, file, all_threads=False)


def request_stacks(pidfd: int, path: Path, number: signal.Signals | int = SIGNAL) -> int:
    """Have a process write its stacks; returns where in the file they will begin."""
    begin = _size(path)
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, number)
    return begin


def await_stacks(begins: Mapping[Path, int], timeout_s: float) -> None:
    """Wait until each file has grown beyond where its stacks begin, and grows no more."""
    deadline = time.monotonic() + timeout_s
    sizes = dict(begins)
    while time.monotonic() < deadline:
        time.sleep(POLL_S)
        before = sizes
        sizes = {path: _size(path) for path in begins}
        if sizes == before and all(sizes[path] > begin for path, begin in begins.items()):
            return


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def innermost(path: Path, begin: int, *, of_task: bool = False) -> list[str]:
    """The innermost frames of the main thread in what was written from `begin` on, as
    `File "mine.py", line 7 in forward`, the innermost first; none if nothing was written.

    Args:
        path: The file.
        begin: Place at which the stacks begin.
        of_task: True to leave out frames of holdfast, in which a worker waits.
    """
    try:
        with path.open("rb") as file:
            file.seek(begin)
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    asked = _ASKED.search(text)
    lines = text[asked.end() :].partition("\n\n")[0].splitlines() if asked else []
    frames = [line.strip() for line in lines if line.startswith("  File ")]
    if of_task:
        frames = [frame for frame in frames if not frame.startswith(_OWN)]
    return frames[:FRAMES]
