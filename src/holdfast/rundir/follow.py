"""Follow: reads files of a run as they grow; what a reader does with a line is not decided here.

A reader has a cursor: a place in the file, and the bytes before it. The place is behind a
whole line, so a torn end is read again once it is whole. The bytes tell whether the file has only
grown: it may have been replaced by a new one, or, after a restart from a checkpoint, have been cut
off and continued. A cursor is plain data; it outlives the process that reads.

    ByteTail   whole lines as bytes: logs, and blocks of a long file
    JsonTail   objects, each once; a replaced file is read from its start
    StepTail   steps and evaluations, each once, also where a restart computes them again
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

from holdfast.rundir import json_lines
from holdfast.rundir.json_lines import NewestSteps, objects_in

MARK_BYTES: Final = 1024
"""Length of what a cursor keeps of the file: more than a step, so that the times in it tell it from
others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A place in a file.

    Attributes:
        position: Bytes before it.
        before: The last of these, `MARK_BYTES` or fewer, as Latin-1.
    """

    position: int = 0
    before: str = ""

    def moved(self, read: bytes) -> Cursor:
        """The cursor after `read`, which follows it in the file."""
        before = (self.before + read[-MARK_BYTES:].decode("latin-1"))[-MARK_BYTES:]
        return Cursor(position=self.position + len(read), before=before)


def end_of(path: Path) -> Cursor:
    """The cursor at the end of a file, or at the start of one that comes later."""
    if not path.exists():
        return Cursor()
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - MARK_BYTES))
        before = file.read(min(size, MARK_BYTES))
    return Cursor(position=size, before=before.decode("latin-1"))


class ByteTail:
    """The lines of a file after a cursor, which moves behind them.

    Args:
        path: The file; it may come later.
        cursor: The place to begin at.

    Attributes:
        cursor: The place behind the last line that was read; a reader may set it.
    """

    def __init__(self, path: Path, cursor: Cursor = Cursor()) -> None:
        self._path = path
        self.cursor = cursor

    def holds(self, cursor: Cursor) -> bool:
        """True if what was before a cursor is still there: the file has only grown since.

        Raises:
            OSError: It cannot be read.
        """
        if not self._path.exists():
            return not cursor.position
        with self._path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < cursor.position:
                return False
            file.seek(cursor.position - len(cursor.before))
            return file.read(len(cursor.before)) == cursor.before.encode("latin-1")

    def lines(self, about_bytes: int | None = None) -> bytes:
        """The next whole lines.

        Args:
            about_bytes: The size after which the line that is being read is the last one, so that
                there is at least one, however long; None for all.

        Raises:
            OSError: The file cannot be read.
        """
        if not self._path.exists():
            return b""
        with self._open() as file:
            read = file.read(-1 if about_bytes is None else about_bytes)
            if about_bytes is not None and not read.endswith(b"\n"):
                read += file.readline()
        return self._taken(read[: read.rfind(b"\n") + 1])

    def piece(self, limit_bytes: int, *, is_last: bool = False) -> bytes:
        """The next whole lines, `limit_bytes` at most: a line that is longer is broken.

        Args:
            limit_bytes: The most that is read.
            is_last: True if nothing more is written: a torn end counts as a line.

        Raises:
            OSError: The file cannot be read.
        """
        if not self._path.exists():
            return b""
        with self._open() as file:
            read = file.read(limit_bytes)
        whole = read[: read.rfind(b"\n") + 1]
        if not whole and (is_last or len(read) == limit_bytes):
            whole = read
        return self._taken(whole)

    def _open(self) -> BinaryIO:
        file = self._path.open("rb")
        file.seek(self.cursor.position)
        return file

    def _taken(self, read: bytes) -> bytes:
        self.cursor = self.cursor.moved(read)
        return read


class JsonTail:
    """The objects in a file of JSON lines after a cursor; those of a new file if that takes its
    place.

    Args:
        path: The file; it may come later.
        cursor: The place to begin at.
    """

    def __init__(self, path: Path, cursor: Cursor = Cursor()) -> None:
        self._tail = ByteTail(path, cursor)
        self._path = path

    @property
    def cursor(self) -> Cursor:
        """The place behind the last line that was read."""
        return self._tail.cursor

    def __call__(self, about_bytes: int | None = None) -> list[dict[str, Any]]:
        """The objects that have been appended, whole, since the last call; see `ByteTail.lines`.

        Raises:
            OSError: The file cannot be read.
        """
        if self._path.exists() and not self._tail.holds(self.cursor):
            self._tail.cursor = Cursor()  # a new file has taken its place
        return objects_in(self._tail.lines(about_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCursor:
    """A place in `metrics.jsonl`; lines of steps that are not newer are skipped after it.

    Attributes:
        place: The place.
        step: The newest step.
        evaluation: The newest step with an evaluation.
    """

    place: Cursor = Cursor()
    step: int = -1
    evaluation: int = -1

    def after(self, step: int) -> Self:
        """The cursor of an attempt that begins after `step` steps."""
        return replace(self, step=step, evaluation=step)


class StepTail:
    """The lines of `metrics.jsonl` after a cursor: each step and each evaluation once, in order.

    A restart removes the steps after a checkpoint from the file. They are computed again, with the
    same values, so their lines are skipped.

    Args:
        path: The file; it may come later.
        cursor: The place to begin at.

    Attributes:
        cursor: The place behind the last line that was read, and what is newest there.
    """

    def __init__(self, path: Path, cursor: StepCursor = StepCursor()) -> None:
        self._path = path
        self._tail = ByteTail(path)
        self.cursor = cursor

    def __call__(self, about_bytes: int | None = None) -> list[dict[str, Any]]:
        """The new lines since the last call; see `ByteTail.lines`.

        Raises:
            OSError: The file cannot be read.
        """
        if not self._path.exists():
            return []
        is_there = self._tail.holds(self.cursor.place)
        self._tail.cursor = self.cursor.place if is_there else self._before_new()
        newest = NewestSteps(step=self.cursor.step, evaluation=self.cursor.evaluation)
        new = [each for each in objects_in(self._tail.lines(about_bytes)) if newest.advance(each)]
        self.cursor = StepCursor(
            place=self._tail.cursor, step=newest.step, evaluation=newest.evaluation
        )
        return new

    def _before_new(self) -> Cursor:
        """A place in a file that was cut off, so that no new line is before it."""
        # What is left ends shortly before the newest step, so its end will do, mostly.
        start = max(0, self._path.stat().st_size - json_lines.TAIL_BYTES)
        steps = (each.get("step") for each in json_lines.last(self._path, json_lines.TAIL_BYTES))
        first = next(steps, None)
        is_before = isinstance(first, int) and first < self.cursor.step
        return Cursor(position=start if is_before else 0)
