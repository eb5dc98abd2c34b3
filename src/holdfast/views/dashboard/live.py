"""LiveRuns: the runs of a directory as they grow, read once for all visits of the page."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from holdfast.errors import HoldfastError
from holdfast.record.run_record import RunRecord
from holdfast.rundir.run_directory import EVENTS

MAX_RUNS: Final = 20
"""The newest are offered."""
DAMAGED: Final = (HoldfastError, OSError, ArithmeticError, LookupError, TypeError, ValueError)
"""Errors of reading or drawing a run whose files are damaged, or of another version."""
FRESH_S: Final = 0.3
"""A record that was read so lately is not read again, unless there is more of it."""
SLICE_S: Final = 0.1
"""Most time that a panel waits for the steps of a long run; the next one reads on."""


class LiveRuns:
    """The runs in a directory. Streamlit draws in threads; a record is used by one at a time.

    Args:
        path: A run, or a directory with runs in it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_run = (path / EVENTS).exists()
        self._lock = threading.Lock()
        self._records: dict[str, RunRecord] = {}
        self._files: dict[str, int] = {}  # the inode of its events: a run may be made again
        self._read_at: dict[str, float] = {}

    def names(self, asked: str = "") -> list[str]:
        """The runs by name: the given one first, then the newest first.

        Args:
            asked: A run that is among them if it is there, even if it is old.
        """
        folder = self._path.parent if self._is_run else self._path
        newest = sorted(folder.glob(f"*/{EVENTS}"), key=_written_at, reverse=True)[:MAX_RUNS]
        names = [path.parent.name for path in newest if _written_at(path)]
        is_name = asked == Path(asked).name and asked not in ("", "..")
        if is_name and asked not in names and _written_at(folder / asked / EVENTS):
            names.append(asked)
        if self._is_run:
            first = self._path.name
            return [first, *(name for name in names if name != first)]
        return names

    @contextmanager
    def reading(
        self, name: str, compared: str | None
    ) -> Iterator[tuple[RunRecord, RunRecord | None]]:
        """A run as it is now and another to compare it with, which do not change meanwhile.

        Raises:
            JobError: There is no such run.
        """
        with self._lock:
            yield self._fresh(name), self._fresh(compared) if compared else None

    @contextmanager
    def reading_all(self, names: list[str]) -> Iterator[list[RunRecord]]:
        """Several runs as they are now, without those that cannot be read."""
        with self._lock:
            found = []
            for name in names:
                with suppress(*DAMAGED):
                    found.append(self._fresh(name))
            yield found

    def _fresh(self, name: str) -> RunRecord:
        now = time.monotonic()
        folder = self._path.parent if self._is_run else self._path
        file = _inode_of(folder / name / EVENTS)
        if name not in self._records or file != self._files[name]:
            self._files[name] = file
            self._records[name] = RunRecord(folder / name, SLICE_S)
        elif now - self._read_at[name] >= FRESH_S or self._records[name].read_share < 1:
            self._records[name].refresh()
        self._read_at[name] = now
        return self._records[name]


def _inode_of(path: Path) -> int:
    """The number of a file; 0 if there is none."""
    with suppress(OSError):
        return path.stat().st_ino
    return 0


def _written_at(path: Path) -> float:
    """Time at which a file was last written to; 0 if there is none of that name, or no longer."""
    with suppress(OSError, ValueError):
        return path.stat().st_mtime
    return 0.0
