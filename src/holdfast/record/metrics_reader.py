"""MetricsReader: reads `metrics.jsonl` as it grows, and again from where a restart has cut it off.

The file of a long run has a million lines of a kilobyte. So each line is decoded for the numbers
that every view needs; the times of workers, which are most of it, only where `Steps` keeps them.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import dropwhile, islice
from math import inf, isnan, nan
from operator import ge
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from holdfast.record.goodput import Losses
from holdfast.record.steps import NewSteps, Steps, Workers

RECENT: Final = 64
"""Of how many of the newest steps the times of all workers are known, in a long run too."""
BLOCK_BYTES: Final = 1 << 17
"""How much is read at once, and how far apart the places are from which it can be read again."""
_MARK_BYTES: Final = 1024
"""How much before a place shows that it is the same: more than a step, with the time in it."""


class _Phases(Struct, gc=False):
    """What the writer of a line has spent in pauses, seconds."""

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
"""What the decoder raises for a line that is torn, or of another version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The results of an evaluation, after `step` steps, by name."""

    step: int
    results: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Mark:
    """A place in the file.

    Attributes:
        position: Where, bytes.
        before: The last bytes before it.
        rows, evaluations: How many of each are before it.
    """

    position: int
    before: bytes
    rows: int
    evaluations: int


class MetricsReader:
    """Reads the steps and evaluations of a run; what a restart removes is dropped.

    Args:
        path: The file; it may come later.
        steps: Where the steps go.

    Attributes:
        evaluations: Of the run, in order.
        share: How much of the file was read, 0 to 1.
    """

    def __init__(self, path: Path, steps: Steps) -> None:
        self._path = path
        self._steps = steps
        self.evaluations: list[Evaluation] = []
        self._recent: deque[tuple[int, bytes]] = deque(maxlen=RECENT)  # step and line
        self._marks = [_Mark(0, b"", 0, 0)]
        self.share = 1.0
        self._is_cut_short = False

    def refresh(self, limit_s: float = inf) -> bool:
        """Read what is new; returns whether anything is.

        Args:
            limit_s: The time after which the rest is left for the next call.
        """
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return False
        with file:
            was_cut = self._go_back(file)
            has_grown = self._read(file, time.monotonic() + limit_s)
            size = os.fstat(file.fileno()).st_size
        self.share = self._marks[-1].position / size if self._is_cut_short else 1.0
        return was_cut or has_grown

    def recent_workers(self, steps: int) -> list[dict[str, Workers]]:
        """The lines of the newest steps, with only the times of workers in them."""
        newest = islice(self._recent, max(0, len(self._recent) - steps), None)
        found = (_workers_in(line) for _, line in newest)
        return [{"workers": workers} for workers in found if workers]

    def _go_back(self, file: BinaryIO) -> bool:
        """Forget what is no longer in the file; returns whether that was anything."""
        count = len(self._marks)
        while not _is_there(file, self._marks[-1]):
            self._marks.pop()
        if len(self._marks) == count:
            return False
        mark = self._marks[-1]
        self._steps.cut(mark.rows)
        del self.evaluations[mark.evaluations :]
        while self._recent and self._recent[-1][0] > self._steps.newest:
            self._recent.pop()
        return True

    def _read(self, file: BinaryIO, deadline: float) -> bool:
        begin = position = self._marks[-1].position
        file.seek(position)
        rest = b""
        self._is_cut_short = False
        while block := file.read(BLOCK_BYTES):
            block = rest + block
            *lines, rest = block.split(b"\n")
            if lines:
                self._take(lines)
                whole = len(block) - len(rest)
                position += whole
                self._add_mark(position, block[max(0, whole - _MARK_BYTES) : whole])
            if time.monotonic() > deadline and position > begin:
                self._is_cut_short = True
                break
        return position > begin

    def _add_mark(self, position: int, read: bytes) -> None:
        """Add a place to begin from next, in place of the last one if that is near; `read` is the
        end of what was read.
        """
        before = (self._marks[-1].before + read)[-_MARK_BYTES:]
        near = len(self._marks) > 1 and position - self._marks[-2].position < BLOCK_BYTES
        if near:
            self._marks.pop()
        mark = _Mark(position, before, len(self._steps), len(self.evaluations))
        self._marks.append(mark)

    def _take(self, lines: list[bytes]) -> None:
        """Take whole lines; column by column, because there may be a million."""
        found, lines = _decoded(lines)
        others = [each for each in found if each.evaluation is not None or each.loss is UNSET]
        numbers = [self._steps.newest, *(each.step for each in found)]
        if others or any(map(ge, numbers, numbers[1:])):
            self.evaluations += [
                Evaluation(step=each.step, results=each.evaluation)
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
    """What is in the lines that can be read, and these."""
    with suppress(*_NOT_READABLE):
        return list(map(_LINE.decode, lines)), lines
    found = list[_Line]()
    kept = list[bytes]()
    for line in lines:
        with suppress(*_NOT_READABLE):
            found.append(_LINE.decode(line))
            kept.append(line)
    return found, kept


def _is_there(file: BinaryIO, mark: _Mark) -> bool:
    file.seek(mark.position - len(mark.before))
    return file.read(len(mark.before)) == mark.before


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
    """All lines of a file as they are, faster than `lines.read`."""
    decoder = msgspec.json.Decoder(dict[str, Any])
    with path.open("rb") as file:
        for line in file:
            try:
                yield decoder.decode(line)
            except _NOT_READABLE:
                continue
