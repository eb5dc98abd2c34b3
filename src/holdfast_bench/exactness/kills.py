"""Kills: a worker that sends SIGKILL to itself at a given call; for workers only.

The call is counted by the interpreter's profiler, which sees Python's functions and built-in ones,
so a kill comes anywhere in Python code, ours or the user's, and comes to the same place again.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from holdfast_bench.exactness.case import Kill


class Kills:
    """Kill points of one worker.

    Args:
        planned: Of the whole run.
        rank: Of this worker.
        marks: A directory where the workers of a run leave files that say what has happened.
    """

    def __init__(self, planned: Sequence[Kill], rank: int, marks: Path) -> None:
        self._marks = marks
        life = _lives(marks, rank)
        self._mine = [kill for kill in planned if kill.rank == rank and kill.life == life]
        self._begin(None)

    def at_step(self, step: int) -> None:
        """Say that a shard of `step` begins."""
        self._begin(step)

    def _begin(self, step: int | None) -> None:
        due = [kill for kill in self._mine if kill.step == step]
        if due:
            self._mine = [kill for kill in self._mine if kill not in due]
            sys.setprofile(_Countdown(min(kill.calls for kill in due), self._marks))


class _Countdown:
    def __init__(self, calls: int, marks: Path) -> None:
        self._left = calls
        self._marks = str(marks)

    def __call__(self, _frame: FrameType, event: str, _argument: Any) -> None:
        if event in ("call", "c_call"):
            self._left -= 1
            if self._left == 0:
                sys.setprofile(None)
                os.close(os.open(f"{self._marks}/killed-{os.getpid()}", os.O_CREAT))
                os.kill(os.getpid(), signal.SIGKILL)


def _lives(marks: Path, rank: int) -> int:
    """Number of workers of this rank before this one."""
    life = 0
    while True:
        try:
            (marks / f"rank-{rank}.{life}").touch(exist_ok=False)
        except FileExistsError:
            life += 1
        else:
            return life
