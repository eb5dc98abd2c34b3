"""MetricsReader: reads `metrics.jsonl` as it grows, and again from where a restart has cut it off.

The file of a long run has a million lines of a kilobyte. So each line is decoded for the numbers
that every view needs; the times of workers, which are most of it, only where `Steps` keeps them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, dropwhile
from math import isnan, nan
from operator import ge
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from holdfast.core.goodput import Losses
from holdfast.observe.record.steps import NewSteps, Steps, Workers

RECENT: Final = 64
"""Of how many of the newest steps the times of all workers are known, in a long run too."""
BLOCK_BYTES: Final = 1 << 20
"""How much is read at once, and how far apart the places are from which it can be read again."""
_MARK_BYTES: Final = 1024
"""How much before a place shows that it is the same: more than a step, with the time in it."""


class _Line(Struct, gc=False):
    """A line of `metrics.jsonl`, a step or an evaluation, without the times in it."""

    step: int
    loss: float | UnsetType | None = UNSET
    time_unix_s: float = nan
    seconds: float | None = None
    epoch: int = 0
    samples: int = 0
    lr: float | None = None
    norm: float | None = None
    logged: dict[str, float | None] = {}  # msgspec makes a new one each time
    evaluation: dict[str, Any] | None = None

    @property
    def is_step(self) -> bool:
        """Whether it is a step."""
        return self.loss is not UNSET and self.evaluation is None


class _Phases(Struct):
    checkpoint: float = 0.0
    evaluate: float = 0.0


class _Times(Struct):
    """The times in the line of a step."""

    phases: _Phases = msgspec.field(default_factory=_Phases)
    workers: dict[str, list[int | float]] = {}  # as above


_LINE: Final = msgspec.json.Decoder(_Line)
_TIMES: Final = msgspec.json.Decoder(_Times)
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
    """

    def __init__(self, path: Path, steps: Steps) -> None:
        self._path, self._steps = path, steps
        self.evaluations: list[Evaluation] = []
        self._recent: deque[tuple[int, bytes]] = deque(maxlen=RECENT)  # step and line
        self._marks = [_Mark(0, b"", 0, 0)]

    def refresh(self) -> bool:
        """Read what is new; returns whether anything is."""
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return False
        with file:
            was_cut = self._go_back(file)
            has_grown = self._read(file)
        return was_cut or has_grown

    def recent_workers(self) -> list[dict[str, Workers]]:
        """The lines of the newest steps, with only the times of workers in them."""
        found = (_workers_in(line) for _, line in self._recent)
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

    def _read(self, file: BinaryIO) -> bool:
        begin = position = self._marks[-1].position
        file.seek(position)
        rest = b""
        while block := file.read(BLOCK_BYTES):
            whole, newline, rest = (rest + block).rpartition(b"\n")
            if not newline:
                continue
            self._take(whole.split(b"\n"))
            position += len(whole) + 1
            self._add_mark(position, whole + newline)
        return position > begin

    def _add_mark(self, position: int, read: bytes) -> None:
        """Add a place to begin from next, in place of the last one if that is near."""
        before = (self._marks[-1].before + read)[-_MARK_BYTES:]
        near = len(self._marks) > 1 and position - self._marks[-2].position < BLOCK_BYTES
        if near:
            self._marks.pop()
        mark = _Mark(position, before, len(self._steps), len(self.evaluations))
        self._marks.append(mark)

    def _take(self, lines: list[bytes]) -> None:
        """Take whole lines; column by column, because there may be a million."""
        read = _decoded(lines)
        self.evaluations += [
            Evaluation(step=each.step, results=each.evaluation)
            for each, _ in read
            if each.evaluation is not None
        ]
        read = self._new([each for each in read if each[0].is_step])
        if not read:
            return
        found, lines = [each for each, _ in read], [line for _, line in read]
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
        paused = [
            place
            for place, line in enumerate(lines)
            if b'"checkpoint"' in line or b'"evaluate"' in line
        ]
        new = NewSteps(
            columns=columns,
            logged=[each.logged for each in found],
            pauses={place: pauses for place in paused if any(pauses := _pauses_in(lines[place]))},
            workers=lambda place: _workers_in(lines[place]),
        )
        self._steps.extend(new)
        self._recent.extend(
            (each.step, line) for each, line in zip(found[-RECENT:], lines[-RECENT:], strict=True)
        )

    def _new(self, read: list[tuple[_Line, bytes]]) -> list[tuple[_Line, bytes]]:
        """The steps that come after those that are known; the first one must have a time."""
        newest = self._steps.newest
        if not len(self._steps):
            read = list(dropwhile(lambda each: isnan(each[0].time_unix_s), read))
        numbers = [newest, *(each.step for each, _ in read)]
        if any(map(ge, numbers, numbers[1:])):
            rising = accumulate(numbers, max)
            read = [each for each, known in zip(read, rising, strict=False) if each[0].step > known]
        return read


def _decoded(lines: list[bytes]) -> list[tuple[_Line, bytes]]:
    """The lines that can be read, with what is in them."""
    decode = _LINE.decode
    try:
        return [(decode(line), line) for line in lines]
    except _NOT_READABLE:
        pass
    found = []
    for line in lines:
        with suppress(*_NOT_READABLE):
            found.append((decode(line), line))
    return found


def _is_there(file: BinaryIO, mark: _Mark) -> bool:
    file.seek(mark.position - len(mark.before))
    return file.read(len(mark.before)) == mark.before


def _pauses_in(line: bytes) -> Losses:
    """What the writer of a line has lost in a checkpoint and an evaluation."""
    try:
        phases = _TIMES.decode(line).phases
    except _NOT_READABLE:
        return Losses()
    return Losses(phases.checkpoint, phases.evaluate)


def _workers_in(line: bytes) -> Workers:
    """The times of workers in a line; empty if it has none that can be used."""
    try:
        workers = _TIMES.decode(line).workers
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
