"""Tee: shows the lines that chosen workers print, each with its rank before it.

The workers write to their logs, and these are read here. So a slow or dead reader delays no worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from holdfast.rundir.follow import ByteTail, Cursor, end_of
from holdfast.rundir.run_directory import worker_log

READ_BYTES: Final = 1 << 16
"""The most that is taken from one log at a time, so that a flood does not keep the reader from the
rest of its work; a line that is longer is broken there."""


class Tee:
    """Follows the logs of some workers from where they end now.

    Args:
        logs: The directory of the workers' logs.
        ranks: The workers.
        whole: True to begin at their start instead.
    """

    def __init__(self, logs: Path, ranks: Iterable[int], *, whole: bool = False) -> None:
        self._paths = {rank: worker_log(logs, rank) for rank in sorted(ranks)}
        self._tails = {
            rank: ByteTail(path, Cursor() if whole else end_of(path))
            for rank, path in self._paths.items()
        }

    def lines(self) -> Iterator[str]:
        """The lines that have been completed since the last call."""
        return self._read(is_last=False)

    def last_lines(self) -> Iterator[str]:
        """All that is left once the workers have ended, a line without an end included."""
        # Processes that the workers have left behind may write on: what is there now is enough.
        ends = {rank: end_of(path).position for rank, path in self._paths.items()}
        while any(self._tails[rank].cursor.position < end for rank, end in ends.items()):
            if not (lines := list(self._read(is_last=True))):
                return
            yield from lines

    def _read(self, *, is_last: bool) -> Iterator[str]:
        for rank, tail in self._tails.items():
            piece = tail.piece(READ_BYTES, is_last=is_last)
            if piece:
                yield from (_shown(rank, line) for line in piece.removesuffix(b"\n").split(b"\n"))


def _shown(rank: int, line: bytes) -> str:
    """A line as it stands in the end where carriage returns have overwritten it."""
    text = line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]
    return f"[rank {rank}] {text}"
