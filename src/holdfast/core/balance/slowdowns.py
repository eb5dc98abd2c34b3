"""Slowdowns: finds a worker that has become slower than it was, and why.

A worker is compared with itself: workers may differ. It has slowed down if its shards took `SLOWER`
times what is usual for it in `STEPS` steps in a row, and the others did not slow down alike. The
reason is what most of the additional time went to.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from holdfast.core.balance.estimate import median
from holdfast.core.balance.times import StepTimes

SLOWER: Final = 1.3
"""Factor above its usual time from which a worker has slowed down."""
RECOVERED: Final = 1.15
"""Factor up to which a worker is as fast as before."""
STEPS: Final = 3
"""Steps in a row after which a worker counts as slow, or as fast again."""
CERTAIN: Final = 5
"""Steps in a row in which another reason is found that replaces the first one."""
LEAST_USUAL: Final = 5
"""Steps after which it is known what is usual."""
WINDOW: Final = 64
NEW_USUAL: Final = 32
"""Slow steps in a row after which they are usual, if all workers are slow."""


@enum.unique
class SlowReason(enum.Enum):
    """Cause of a worker's additional time."""

    DATA = "data"
    THROTTLING = "throttling"
    COMPUTE = "compute"
    CONTENTION = "contention"


@dataclass(frozen=True, slots=True)
class Slowdown:
    """A worker that has slowed down, or is as fast as before.

    Attributes:
        rank: The worker.
        factor: Time of a shard, relative to the usual one.
        reason: Cause; None once it is as fast as before.
    """

    rank: int
    factor: float
    reason: SlowReason | None


@dataclass(frozen=True, slots=True)
class _Shard:
    """Parts of the time of a worker's shards, seconds of one shard."""

    total: float
    data: float
    throttled: float
    processor: float

    @classmethod
    def of(cls, times: StepTimes, count: int) -> _Shard:
        parts = times.shards_ns, times.data_ns, times.throttled_ns, times.processor_ns
        total, data, throttled, processor = (part / 1e9 / count for part in parts)
        return cls(max(total, 1e-9), data, throttled, processor)


@dataclass(slots=True)
class _Worker:
    """History of one worker's shards.

    Attributes:
        usual: Its newest shards of usual speed.
        recent: Its last ones.
        slow, well: Number of the last ones in a row that were slow, or as before.
        reason: Cause of its slowdown; None if it has not slowed down.
        found, times_found: Cause that the last steps show, and in how many in a row.
    """

    usual: deque[_Shard] = field(default_factory=lambda: deque(maxlen=WINDOW))
    recent: deque[_Shard] = field(default_factory=lambda: deque(maxlen=STEPS))
    slow: int = 0
    well: int = 0
    reason: SlowReason | None = None
    found: SlowReason | None = None
    times_found: int = 0

    def note(self, found: SlowReason) -> bool:
        """Take the reason that a slow step shows; returns whether it is news."""
        self.times_found = self.times_found + 1 if found is self.found else 1
        self.found = found
        if found is self.reason or (self.reason is not None and self.times_found < CERTAIN):
            return False
        self.reason = found
        return True

    def add(self, shard: _Shard) -> None:
        self.recent.append(shard)
        usual = _typical(self.usual, _total) if self.usual else shard.total
        self.slow = self.slow + 1 if shard.total >= SLOWER * usual else 0
        self.well = self.well + 1 if shard.total <= RECOVERED * usual else 0
        # Slow shards become usual only if they stay slow for long, or if few are known yet.
        if not self.slow and self.reason is None:
            self.usual.append(shard)
        elif len(self.usual) < LEAST_USUAL or (self.slow >= NEW_USUAL and self.reason is None):
            self.usual = deque(self.recent, maxlen=WINDOW)
            self.slow = 0

    @property
    def factor(self) -> float:
        """Time of its last shards, relative to the usual one."""
        return _typical(self.recent, _total) / _typical(self.usual, _total)


class Slowdowns:
    """Finds the slowdowns of the members of a run."""

    def __init__(self) -> None:
        self._workers: dict[int, _Worker] = {}

    def observe(
        self, ranks: Sequence[int], times: Sequence[StepTimes], counts: Sequence[int]
    ) -> list[Slowdown]:
        """Take the times of a step; returns what has changed with it.

        Args:
            ranks: The members.
            times: Times of each.
            counts: Number of shards that each has computed.
        """
        members = [self._workers.setdefault(rank, _Worker()) for rank in ranks]
        for worker, each, count in zip(members, times, counts, strict=True):
            if count:  # without shards there is nothing to measure
                worker.add(_Shard.of(each, count))
        return [
            reason
            for rank, worker in zip(ranks, members, strict=True)
            if (reason := _look(rank, worker, members))
        ]

    def reason_of(self, rank: int) -> SlowReason | None:
        """Cause of a worker's slowdown; None without one, or if the cause is not known."""
        worker = self._workers.get(rank)
        return None if worker is None else worker.reason


def _look(rank: int, worker: _Worker, members: Sequence[_Worker]) -> Slowdown | None:
    if worker.reason is not None and worker.well >= STEPS:
        worker.reason = None
        return Slowdown(rank, worker.factor, None)
    if worker.slow < STEPS or len(worker.usual) < LEAST_USUAL:
        return None
    # If another worker slowed down nearly as much, the cause is common to them.
    others = (each for each in members if each is not worker and each.usual)
    if any(worker.factor < SLOWER * each.factor for each in others if each.reason is None):
        return None
    if not worker.note(_reason(worker)):
        return None
    return Slowdown(rank, worker.factor, worker.reason)


def _reason(worker: _Worker) -> SlowReason:
    """Cause of at least half of the additional time; contention if none is known.

    A worker that is stopped also waits for its samples, since what reads them is stopped with it.
    More computation takes even more time where cores are shared, so it counts by itself.
    """

    def rise(part: Callable[[_Shard], float]) -> float:
        return _mean(worker.recent, part) - _mean(worker.usual, part)

    # From the most certain cause to the least: a limit that stopped the worker shows in the others.
    half = rise(_total) / 2
    if rise(lambda shard: shard.throttled) >= half:
        return SlowReason.THROTTLING
    if rise(lambda shard: shard.data) >= half:
        return SlowReason.DATA
    if rise(_processor) >= (SLOWER - 1) * _mean(worker.usual, _processor):
        return SlowReason.COMPUTE
    return SlowReason.CONTENTION


def _processor(shard: _Shard) -> float:
    return shard.processor


def _total(shard: _Shard) -> float:
    return shard.total


def _typical(shards: Iterable[_Shard], part: Callable[[_Shard], float]) -> float:
    return median([part(shard) for shard in shards])


def _mean(shards: Collection[_Shard], part: Callable[[_Shard], float]) -> float:
    """The mean: a group is stopped for whole periods, which not every step has."""
    return sum(part(shard) for shard in shards) / len(shards)
