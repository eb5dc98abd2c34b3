"""Bottleneck: what limits the speed of a run, in words, with the number behind it.

The last worker to finish its shards decides when a step ends. Its phases are looked at: each that
takes more than a certain share of the step limits the run, and the largest share counts.

A step with another number of shards is computed from the times of this one. Adding its gradient
takes a shard the same time, whatever its size. The rest of it shrinks with its size, at most:
kernels are less efficient on few samples.

    8 shards of 10 ms, 4 ms of that for the gradient ─▶ 16 of 7 ms, or 4 of 16 ms
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from holdfast.core.balance.estimate import median
from holdfast.core.balance.planner import Cost, fastest, makespan
from holdfast.core.balance.times import StepTimes

STEPS: Final = 20
"""Steps that one finding is about."""
MEMORY: Final = 0.9
"""The share of the memory in use that is worth a word if nothing takes time."""


@dataclass(frozen=True, slots=True)
class RunBottleneck:
    """Limit of a run's speed.

    Attributes:
        name: Such as `input-bound`.
        share: The part of a step that it takes, or of the memory in use.
        text: Both in words.
    """

    name: str
    share: float
    text: str


@dataclass(frozen=True, slots=True)
class _Kind:
    """A name for a phase that takes too much.

    Attributes:
        least: The share from which it counts.
    """

    name: str
    least: float
    text: str

    def of(self, share: float, what: str = "") -> RunBottleneck:
        return RunBottleneck(self.name, share, self.text.format(share, what))


INPUT: Final = _Kind("input-bound", 0.10, "waiting for samples takes {:.0%} of a step")
REDUCTION: Final = _Kind("reduction-bound", 0.20, "summing gradients takes {:.0%} of a step")
LINK: Final = _Kind("link-bound", 0.20, "summing gradients over the network takes {:.0%} of a step")
SHARDS: Final = _Kind(
    "shard-bound",
    0.10,
    "{1} would save {0:.0%} of a step or more, since each adds its gradient",
)
CHECKPOINT: Final = _Kind("checkpoint-bound", 0.05, "checkpoints take {:.0%} of a step")
IMBALANCED: Final = _Kind(
    "imbalanced", 0.05, "balance=dynamic would save {:.0%} of a step: workers differ in speed"
)
COARSE: Final = _Kind(
    "coarse shards", 0.10, "{1} would save up to {0:.0%} of a step, as they are divided finer"
)
CAPPED: Final = _Kind("memory-bound", 0.05, "{1}: with more, a step would take {0:.0%} less time")
NEAR_LIMIT: Final = _Kind("near the memory limit", MEMORY, "{:.0%} of the memory is in use")
COMPUTE: Final = _Kind("compute-bound", 0.0, "forward and backward take {:.0%} of a step")

DOUBLINGS: Final = 3
"""Number of times that the shards are doubled or halved in the search for a better number."""


class _Worker(NamedTuple):
    """Cost of a step for a worker, nanoseconds; see `Cost`.

    Attributes:
        collect: The part of a shard that does not depend on its size.
        cap: The most shards that it can compute in a step as it is now.
    """

    fixed: float
    shard: float
    collect: float
    cap: int

    def cost(self, shards: int, now: int) -> Cost:
        """In a step of so many shards, where it has `now` shards."""
        work = (self.shard - self.collect) * now / shards
        cap = self.cap * shards // now  # smaller shards need less memory
        return Cost(self.fixed, max(work + self.collect, 1.0), cap)


class BottleneckFinder:
    """Looks for the bottleneck of one generation, every `STEPS` steps.

    Args:
        has_network: True if there are several hosts.
        least_shards: Fewest shards of a step: one for each worker of a full world.
        most_shards: Most shards of a step; 0 if workers merge theirs: their number costs nothing.
        is_dynamic: True if plans follow measured times already.
        ranks: The members.
        caps: The most shards of ranks that have run out of memory.
    """

    def __init__(
        self,
        *,
        has_network: bool,
        least_shards: int,
        most_shards: int,
        is_dynamic: bool,
        ranks: Sequence[int],
        caps: Mapping[int, int],
    ) -> None:
        self._ranks = ranks
        self._caps = caps
        self._least_shards = least_shards
        self._most_shards = most_shards
        self._is_dynamic = is_dynamic
        self._sum = REDUCTION if not has_network else LINK
        self._steps: list[tuple[Sequence[StepTimes], Sequence[int]]] = []

    def observe(
        self, times: Sequence[StepTimes], counts: Sequence[int], memory: float
    ) -> RunBottleneck | None:
        """Take the times of a step; returns the bottleneck of the last `STEPS`, once there are.

        Args:
            times: Times of each member.
            counts: Number of shards that each has computed.
            memory: The share of the memory in use, of the member with the least left.
        """
        self._steps.append((times, counts))
        if len(self._steps) < STEPS:
            return None
        bottleneck = self._find(memory)
        self._steps.clear()
        return bottleneck

    def _find(self, memory: float) -> RunBottleneck:
        # The worker that finishes last decides when a step ends, so its phases count.
        last = [max(times, key=lambda each: each.busy_ns) for times, _ in self._steps]
        total = sum(each.total_ns for each in last)
        gains = self._gains()
        shares = {
            INPUT: sum(each.data_ns for each in last) / total,
            self._sum: sum(each.reduce_ns + each.wait_reduce_ns for each in last) / total,
            CHECKPOINT: sum(each.checkpoint_ns for each in last) / total,
            **{kind: share for kind, (share, _) in gains.items()},
        }
        limits = {kind: share for kind, share in shares.items() if share >= kind.least}
        # The largest of those that are above their threshold.
        if limits:
            kind = max(limits, key=lambda each: limits[each])
            return kind.of(limits[kind], gains[kind][1] if kind in gains else "")
        if memory >= NEAR_LIMIT.least:
            return NEAR_LIMIT.of(memory)
        return COMPUTE.of(sum(each.forward_ns + each.backward_ns for each in last) / total)

    def _gains(self) -> dict[_Kind, tuple[float, str]]:
        """Shares of a step that another plan, another number of shards and more memory would save,
        each with what it takes, in words.
        """
        counts = self._steps[-1][1]
        now = sum(counts)
        members = len(counts)
        # The cost of a shard is not known of a worker that had none.
        if any(0 in each for _, each in self._steps):
            return {}
        workers = [self._worker(member, now) for member in range(members)]

        def step(shards: int) -> float:
            costs = [worker.cost(shards, now) for worker in workers]
            caps = [cost.cap for cost in costs]
            if 0 in caps or sum(caps) < shards:
                return math.inf  # they may not fit
            return makespan(costs, fastest(costs, shards))

        def best(numbers: Sequence[int]) -> tuple[float, str]:
            gains = [(1 - step(shards) / step(now), shards) for shards in numbers]
            gain, shards = max(gains, default=(0.0, now))
            return gain, f"{_shards(shards)} instead of {now}"

        halved = [now >> times for times in range(1, DOUBLINGS + 1)]
        fewer = best(
            [shards for shards in halved if self._least_shards <= shards <= self._most_shards]
        )
        # What more memory saves, or fewer or more shards, is measured against the best plan.
        free = [worker._replace(cap=now).cost(now, now) for worker in workers]
        wanted = fastest(free, now)
        narrowest = max(range(members), key=lambda each: wanted[each] - workers[each].cap)
        by_reason = {
            SHARDS: fewer,
            CAPPED: (
                1 - makespan(free, wanted) / step(now),
                f"rank {self._ranks[narrowest]} has memory for {_shards(workers[narrowest].cap)}",
            ),
        }
        if self._is_dynamic:
            doubled = [now << times for times in range(1, DOUBLINGS + 1)]
            more = best([shards for shards in doubled if members < shards <= self._most_shards])
            return {**by_reason, COARSE: more}
        return {**by_reason, IMBALANCED: (1 - step(now) / makespan(free, counts), "")}

    def _worker(self, place: int, now: int) -> _Worker:
        steps = [(times[place], counts[place]) for times, counts in self._steps]
        return _Worker(
            fixed=median([each.rest_ns for each, _ in steps]),
            shard=median([each.shards_ns / count for each, count in steps]),
            collect=median([each.collect_ns / count for each, count in steps]),
            cap=self._caps.get(self._ranks[place], now),
        )


def _shards(count: int) -> str:
    return f"{count} shard{'s' * (count != 1)}"
