"""Worker status: what one worker publishes about itself: its phase, its counters, its loss."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from math import isfinite

from holdfast.arena.memory import Arena, Phase, Word, float_of, word_of
from holdfast.core.protocol import WorkerProgress


class WorkerStatus:
    """One worker's line of the arena. The worker writes it; others read it.

    Args:
        arena: The host's shared memory.
        rank: The worker.

    Attributes:
        on_change: Called with each phase that is entered by this object, and when, nanoseconds of
            the monotonic clock.
    """

    def __init__(self, arena: Arena, rank: int) -> None:
        self.rank = rank
        self._line = arena.line(rank)
        self.on_change: Callable[[Phase, int], None] | None = None

    def __getitem__(self, word: int) -> int:
        return self._line[word]

    def __setitem__(self, word: int, value: int) -> None:
        self._line[word] = value

    def claim(self) -> None:
        """Note that this process is the worker now."""
        self[Word.PHASE] = Phase.STARTING
        self[Word.PHASE_SINCE] = time.monotonic_ns()
        self[Word.MEASURING] = self[Word.SHARDS] = self[Word.PLANNED] = 0

    def enter(self, phase: Phase) -> Phase:
        """Begin `phase` and add the time spent in the previous one; returns that one."""
        line = self._line
        now = time.monotonic_ns()
        before = line[Word.PHASE]
        line[Word.PHASE_TIMES + before] += now - (line[Word.PHASE_SINCE] or now)
        line[Word.PHASE] = phase
        line[Word.PHASE_SINCE] = now
        if self.on_change is not None:
            self.on_change(phase, now)
        return Phase(before)

    def count(self, phase: Phase, since: int) -> None:
        """Count the time since a moment as `phase`, within the current one, which continues.

        Args:
            phase: The phase.
            since: The moment, nanoseconds of the monotonic clock. What was counted after it, stays.
        """
        line = self._line
        now = time.monotonic_ns()
        before = line[Word.PHASE_SINCE]
        begin = max(since, before)
        line[Word.PHASE_TIMES + line[Word.PHASE]] += begin - before
        line[Word.PHASE_TIMES + phase] += now - begin
        line[Word.PHASE_SINCE] = now

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Show, within an evaluation, that user code runs: unlike samples it must not be waited for
        as long as it takes.
        """
        self.enter(Phase.EVALUATE)
        self[Word.MEASURING] = 1
        try:
            yield
        finally:
            self[Word.MEASURING] = 0
            self.enter(Phase.EVALUATE)

    def begin_wait(self) -> Phase:
        """Begin a wait for other workers; returns the phase before."""
        is_reducing = self._line[Word.PHASE] == Phase.REDUCE
        return self.enter(Phase.WAIT_REDUCE if is_reducing else Phase.WAIT)

    def times(self) -> dict[Phase, float]:
        """Time of the worker in each phase up to its last change, seconds."""
        return {phase: self[Word.PHASE_TIMES + phase] / 1e9 for phase in Phase}

    @property
    def loss(self) -> float:
        """The loss of the newest step that the worker committed."""
        return float_of(self[Word.LOSS])

    @loss.setter
    def loss(self, loss: float) -> None:
        self[Word.LOSS] = word_of(loss)


def progress_of(arena: Arena, ranks: Iterable[int]) -> dict[int, WorkerProgress]:
    """The progress of workers, by rank."""
    return {rank: _progress_of(WorkerStatus(arena, rank)) for rank in ranks}


def _progress_of(worker: WorkerStatus) -> WorkerProgress:
    step = worker[Word.COMMITTED]
    loss = worker.loss
    return WorkerProgress(
        step=step,
        total_steps=worker[Word.TOTAL_STEPS],
        epoch=worker[Word.EPOCH],
        epochs=worker[Word.EPOCHS],
        loss=loss if step and isfinite(loss) else None,
        samples=worker[Word.SAMPLES],
        phase=Phase(worker[Word.PHASE]).name.lower(),
        phase_seconds={
            phase.name.lower(): round(seconds, 3)
            for phase, seconds in worker.times().items()
            if seconds
        },
    )
