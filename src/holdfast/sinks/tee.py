"""Tee: shows the lines that chosen workers print, each with its rank before it.

The workers write to their logs, and these are read here. So a slow or dead reader delays no worker.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.rundir.run_directory import worker_log

READ_BYTES: Final = 1 << 16
"""The most that is taken from one log at a time, so that a flood does not keep the reader from the
rest of its work; a line that is longer is broken there."""


@dataclass(slots=True, kw_only=True)
class _Log:
    """A log that is followed.

    Attributes:
        position: Bytes that have been read.
        begun: The start of a line that is not complete.
    """

    rank: int
    path: Path
    position: int
    begun: bytes = b""


class Tee:
    """Follows the logs of some workers from where they end now.

    Args:
        logs: The directory of the workers' logs.
        ranks: The workers.
        whole: Whether to begin at their start instead.
    """

    def __init__(self, logs: Path, ranks: Iterable[int], *, whole: bool = False) -> None:
        paths = {rank: worker_log(logs, rank) for rank in sorted(ranks)}
        ends = {} if whole else {p: p.stat().st_size for p in paths.values() if p.exists()}
        self._logs = [
            _Log(rank=rank, path=path, position=ends.get(path, 0)) for rank, path in paths.items()
        ]

    def lines(self) -> Iterator[str]:
        """The lines that have been completed since the last call."""
        for log in self._logs:
            *lines, log.begun = (log.begun + _read(log)).split(b"\n")
            if len(log.begun) > READ_BYTES:
                lines = [*lines, log.begun]
                log.begun = b""
            yield from (_shown(log.rank, line) for line in lines)

    def last_lines(self) -> Iterator[str]:
        """All that is left once the workers have ended, a line without an end included."""
        ends = [log.path.stat().st_size if log.path.exists() else 0 for log in self._logs]
        while any(log.position < end for log, end in zip(self._logs, ends, strict=True)):
            yield from self.lines()
        yield from (_shown(log.rank, log.begun) for log in self._logs if log.begun)


def _read(log: _Log) -> bytes:
    try:
        with log.path.open("rb") as file:
            data = os.pread(file.fileno(), READ_BYTES, log.position)
    except FileNotFoundError:  # the worker has not been started yet
        return b""
    log.position += len(data)
    return data


def _shown(rank: int, line: bytes) -> str:
    """A line as it stands in the end where carriage returns have overwritten it."""
    text = line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]
    return f"[rank {rank}] {text}"
