"""MetricsReader: reads `metrics.jsonl` as it grows, and again from where a restart has cut it off.

The file of a long run has a million lines of a kilobyte. So each line is decoded for the numbers
that every view needs; the times of workers, which are most of it, only where `Steps` keeps them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import dropwhile, islice
from math import inf, isnan, nan
from operator import ge
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from holdfast.record.goodput import Losses
from holdfast.record.steps import NewSteps, Steps, Workers
from holdfast.rundir.follow import ByteTail, Cursor

RECENT: Final = 64
"""Number of the newest steps whose times of all workers are known, in a long run too."""
BLOCK_BYTES: Final = 1 << 17
"""Size of what is read at once, and distance of the places from which it can be read again."""


class _Phases(Struct, gc=False):
    """Time that the writer of a line has spent in pauses, seconds."""

    checkpoint: float = 0.0
    evaluate: float = 0.0


class _Line(Struct, gc=False):
    """A line of `metrics.jsonl`, a step or an evaluation, without the times of workers: its keys in
    the order of the line, in which they are found fastest.
    """

    step: int
    epoch: int = 0
    loss: float | UnsetType | None = UNSET
    norm: float | None = None
    lr: float | None = None
    samples: int = 0
    logged: dict[str, float | None] = {}  # msgspec makes a new one each time
    seconds: float | None = None
    phases: _Phases | None = None
    time_unix_s: float = nan
    evaluation: dict[str, Any] | None = None


class _WorkersLine(Struct):
    workers: dict[str, list[int | float]] = {}  # as above


_LINE: Final = msgspec.json.Decoder(_Line)
_WORKERS: Final = msgspec.json.Decoder(_WorkersLine)
_NOT_READABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors of the decoder for a line that is torn, or of another version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """The results of an evaluation, after `step` steps, by name."""

    step: int
    results: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Mark:
    """A place in the file.

    Attributes:
        cursor: Its cursor.
        rows, evaluations: Counts of the steps and evaluations before it.
    """

    cursor: Cursor
    rows: int
    evaluations: int


class MetricsReader:
    """Reads the steps and evaluations of a run; what a restart removes is dropped.

    Args:
        path: The file; it may come later.
        steps: Receiver of the steps.

    Attributes:
        evaluations: Evaluations of the run, in order.
        share: Part of the file that was read, 0 to 1.
    """

    def __init__(self, path: Path, steps: Steps) -> None:
        self._path = path
        self._tail = ByteTail(path)
        self._steps = steps
        self.evaluations: list[EvaluationResult] = []
        self._recent: deque[tuple[int, bytes]] = deque(maxlen=RECENT)  # step and line
        self._marks = [_Mark(Cursor(), 0, 0)]
        self.share = 1.0
        self._is_cut_short = False

    def refresh(self, limit_s: float = inf) -> bool:
        """Read what is new; returns whether anything is.

        Args:
            limit_s: The time after which the rest is left for the next call.
        """
        if not self._path.exists():
            return False
        was_cut = self._go_back()
        has_grown = self._read(time.monotonic() + limit_s)
        position = self._tail.cursor.position
        self.share = position / self._path.stat().st_size if self._is_cut_short else 1.0
        return was_cut or has_grown

    def recent_workers(self, steps: int) -> list[dict[str, Workers]]:
        """The lines of the newest steps, with only the times of workers in them."""
        newest = islice(self._recent, max(0, len(self._recent) - steps), None)
        found = (_workers_in(line) for _, line in newest)
        return [{"workers": workers} for workers in found if workers]

    def _go_back(self) -> bool:
        """Forget what is no longer in the file; returns True if that was anything."""
        count = len(self._marks)
        while not self._tail.holds(self._marks[-1].cursor):
            self._marks.pop()
        mark = self._marks[-1]
        self._tail.cursor = mark.cursor
        if len(self._marks) == count:
            return False
        self._steps.cut(mark.rows)
        del self.evaluations[mark.evaluations :]
        while self._recent and self._recent[-1][0] > self._steps.newest:
            self._recent.pop()
        return True

    def _read(self, deadline: float) -> bool:
        begin = self._tail.cursor
        self._is_cut_short = False
        while block := self._tail.lines(BLOCK_BYTES):
            self._take(block.removesuffix(b"\n").split(b"\n"))
            self._add_mark(self._tail.cursor)
            if time.monotonic() > deadline:
                self._is_cut_short = True
                break
        return self._tail.cursor != begin

    def _add_mark(self, cursor: Cursor) -> None:
        """Add a place to begin from next, in place of the last one if that is near."""
        if len(self._marks) > 1:
            apart = cursor.position - self._marks[-2].cursor.position
            if apart < BLOCK_BYTES:
                self._marks.pop()
        self._marks.append(_Mark(cursor, len(self._steps), len(self.evaluations)))

    def _take(self, lines: list[bytes]) -> None:
        """Take whole lines; column by column, because there may be a million."""
        found, lines = _decoded(lines)
        others = [each for each in found if each.evaluation is not None or each.loss is UNSET]
        numbers = [self._steps.newest, *(each.step for each in found)]
        if others or any(map(ge, numbers, numbers[1:])):
            self.evaluations += [
                EvaluationResult(step=each.step, results=each.evaluation)
                for each in others
                if each.evaluation is not None
            ]
            found, lines = self._new(found, lines)
        if not len(self._steps):  # the first one needs a time
            found = list(dropwhile(lambda each: isnan(each.time_unix_s), found))
            lines = lines[len(lines) - len(found) :]
        if not found:
            return
        columns: dict[str, list[Any]] = {
            "step": [each.step for each in found],
            "at": [each.time_unix_s for each in found],
            "epoch": [each.epoch for each in found],
            "samples": [each.samples for each in found],
            "seconds": [nan if each.seconds is None else each.seconds for each in found],
            "loss": [nan if each.loss is None else each.loss for each in found],
            "lr": [nan if each.lr is None else each.lr for each in found],
            "norm": [nan if each.norm is None else each.norm for each in found],
        }
        phases = [each.phases for each in found]
        pauses = {
            place: Losses(each.checkpoint, each.evaluate)
            for place, each in enumerate(phases)
            if each is not None and (each.checkpoint or each.evaluate)
        }
        new = NewSteps(
            columns=columns,
            logged=[each.logged for each in found],
            pauses=pauses,
            workers=lambda place: _workers_in(lines[place]),
        )
        self._steps.extend(new)
        self._recent.extend(zip(columns["step"][-RECENT:], lines[-RECENT:], strict=True))

    def _new(self, read: list[_Line], lines: list[bytes]) -> tuple[list[_Line], list[bytes]]:
        """The steps that come after those before them, and their lines."""
        newest = self._steps.newest
        found = list[_Line]()
        kept = list[bytes]()
        for each, line in zip(read, lines, strict=True):
            if each.loss is not UNSET and each.evaluation is None and each.step > newest:
                newest = each.step
                found.append(each)
                kept.append(line)
        return found, kept


def _decoded(lines: list[bytes]) -> tuple[list[_Line], list[bytes]]:
    """Contents of the lines that can be read, and these."""
    with suppress(*_NOT_READABLE):
        return list(map(_LINE.decode, lines)), lines
    found = list[_Line]()
    kept = list[bytes]()
    for line in lines:
        with suppress(*_NOT_READABLE):
            found.append(_LINE.decode(line))
            kept.append(line)
    return found, kept


def _workers_in(line: bytes) -> Workers:
    """The times of workers in a line; empty if it has none that can be used."""
    try:
        workers = _WORKERS.decode(line).workers
    except _NOT_READABLE:
        return {}
    count = len(workers.get("rank", ()))
    is_whole = "shards" in workers and all(len(column) == count for column in workers.values())
    return workers if count and is_whole else {}


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    """All lines of a file as they are, faster than `json_lines.read`."""
    decoder = msgspec.json.Decoder(dict[str, Any])
    with path.open("rb") as file:
        for line in file:
            try:
                yield decoder.decode(line)
            except _NOT_READABLE:
                continue
