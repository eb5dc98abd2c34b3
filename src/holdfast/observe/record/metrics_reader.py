"""MetricsReader: reads `metrics.jsonl` as it grows, and again from where a restart has cut it off.

The file of a long run has a million lines of a kilobyte. So each line is decoded for the numbers
that every view needs; the times of workers, which are most of it, only where `Steps` keeps them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from math import isnan, nan
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from holdfast.core.goodput import Losses
from holdfast.observe.record.steps import Step, Steps, Workers

RECENT: Final = 64
"""Of how many of the newest steps the times of all workers are known, in a long run too."""
BLOCK_BYTES: Final = 1 << 20
"""How much is read at once, and how far apart the places are from which it can be read again."""
_MARK_BYTES: Final = 1024
"""How much before a place shows that it is the same: more than a step, with the time in it."""


class _Phases(Struct):
    checkpoint: float = 0.0
    evaluate: float = 0.0


class _Line(Struct):
    """A line of `metrics.jsonl`: a step, or an evaluation."""

    step: int
    loss: float | UnsetType | None = UNSET
    time_unix_s: float = nan
    seconds: float | None = None
    epoch: int = 0
    samples: int = 0
    lr: float | None = None
    norm: float | None = None
    logged: dict[str, float | None] = {}  # msgspec makes a new one each time
    phases: _Phases = msgspec.field(default_factory=_Phases)
    evaluation: dict[str, Any] | None = None


class _WorkersLine(Struct):
    workers: dict[str, list[int | float]] = {}  # as above


_LINE: Final = msgspec.json.Decoder(_Line)
_WORKERS: Final = msgspec.json.Decoder(_WorkersLine)


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
            for line in whole.split(b"\n"):
                self._add(line)
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

    def _add(self, line: bytes) -> None:
        try:
            found = _LINE.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return  # torn, or of another version
        if found.evaluation is not None:
            self.evaluations.append(Evaluation(step=found.step, results=found.evaluation))
            return
        steps = self._steps
        is_first = not len(steps)
        if (
            found.loss is UNSET
            or found.step <= steps.newest
            or (is_first and isnan(found.time_unix_s))
        ):
            return
        phases = found.phases
        pauses = Losses(phases.checkpoint, phases.evaluate)
        is_wanted = steps.wants_workers() or any(pauses)
        workers = _workers_in(line) if is_wanted else {}
        numbers = (found.seconds, found.loss, found.lr, found.norm)
        seconds, loss, lr, norm = (nan if each is None else each for each in numbers)
        steps.add(
            Step(
                found.step, found.time_unix_s, seconds, found.epoch, found.samples, loss, lr, norm
            ),
            found.logged,
            pauses,
            workers,
        )
        self._recent.append((found.step, line))


def _is_there(file: BinaryIO, mark: _Mark) -> bool:
    file.seek(mark.position - len(mark.before))
    return file.read(len(mark.before)) == mark.before


def _workers_in(line: bytes) -> Workers:
    """The times of workers in a line; empty if it has none that can be used."""
    try:
        workers = _WORKERS.decode(line).workers
    except msgspec.MsgspecError:
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
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                continue
