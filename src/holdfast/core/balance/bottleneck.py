"""Bottleneck: what limits the speed of a run, in words, with the number behind it.

The last worker to finish its shards decides when a step ends. Its phases are looked at: each that
takes more than a certain share of the step limits the run, and the largest share counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.core.balance.estimate import median
from holdfast.core.balance.planner import Cost, fastest, level, makespan
from holdfast.core.balance.times import StepTimes

STEPS: Final = 20
"""Steps that one finding is about."""
MEMORY: Final = 0.9
"""The share of the memory in use that is worth a word if nothing takes time."""


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """What limits a run.

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

    def of(self, share: float) -> Bottleneck:
        return Bottleneck(self.name, share, self.text.format(share, share / 2))


INPUT: Final = _Kind("input-bound", 0.10, "waiting for samples takes {:.0%} of a step")
REDUCTION: Final = _Kind("reduction-bound", 0.20, "summing gradients takes {:.0%} of a step")
LINK: Final = _Kind("link-bound", 0.20, "summing gradients over the network takes {:.0%} of a step")
SHARDS: Final = _Kind(
    "shard-bound",
    0.10,
    "adding the gradients of shards takes {:.0%} of a step; half as many shards would save {:.0%}",
)
CHECKPOINT: Final = _Kind("checkpoint-bound", 0.05, "checkpoints take {:.0%} of a step")
IMBALANCED: Final = _Kind(
    "imbalanced", 0.05, "balance=dynamic would save {:.0%} of a step: workers differ in speed"
)
COARSE: Final = _Kind("coarse shards", 0.10, "more shards would save up to {:.0%} of a step")
NEAR_LIMIT: Final = _Kind("near the memory limit", MEMORY, "{:.0%} of the memory is in use")
COMPUTE: Final = _Kind("compute-bound", 0.0, "forward and backward take {:.0%} of a step")


class BottleneckFinder:
    """Looks for the bottleneck of one generation, every `STEPS` steps.

    Args:
        has_network: Whether there are several hosts.
    """

    def __init__(self, *, has_network: bool) -> None:
        self._sum = REDUCTION if not has_network else LINK
        self._steps: list[tuple[Sequence[StepTimes], Sequence[int]]] = []

    def observe(
        self, times: Sequence[StepTimes], counts: Sequence[int], memory: float
    ) -> Bottleneck | None:
        """Take the times of a step; returns the bottleneck of the last `STEPS`, once there are.

        Args:
            times: Of each member.
            counts: How many shards each has computed.
            memory: The share of the memory in use, of the member with the least left.
        """
        self._steps.append((times, counts))
        if len(self._steps) < STEPS:
            return None
        found = self._find(memory)
        self._steps.clear()
        return found

    def _find(self, memory: float) -> Bottleneck:
        last = [max(times, key=lambda each: each.busy_ns) for times, _ in self._steps]
        total = sum(each.total_ns for each in last)
        saved, finer = self._gains()
        shares = {
            INPUT: sum(each.data_ns for each in last) / total,
            self._sum: sum(each.reduce_ns + each.wait_reduce_ns for each in last) / total,
            SHARDS: sum(each.collect_ns for each in last) / total,
            CHECKPOINT: sum(each.checkpoint_ns for each in last) / total,
            IMBALANCED: saved,
            COARSE: finer,
        }
        limits = {kind: share for kind, share in shares.items() if share >= kind.least}
        if limits:
            kind = max(limits, key=lambda each: limits[each])
            return kind.of(limits[kind])
        if memory >= NEAR_LIMIT.least:
            return NEAR_LIMIT.of(memory)
        return COMPUTE.of(sum(each.forward_ns + each.backward_ns for each in last) / total)

    def _gains(self) -> tuple[float, float]:
        """What the best plan would save of a step, and what shards without end would then."""
        times, counts = zip(*self._steps, strict=True)
        num_shards, num_members = sum(counts[-1]), len(counts[-1])
        if num_members == 1 or any(0 in each for each in counts):
            return 0.0, 0.0
        costs = []
        for place in range(num_members):
            shard = [
                each[place].shards_ns / count[place]
                for each, count in zip(times, counts, strict=True)
            ]
            rest = [each[place].rest_ns for each in times]
            costs.append(Cost(median(rest), max(median(shard), 1.0), num_shards))
        now, best = makespan(costs, counts[-1]), makespan(costs, fastest(costs, num_shards))
        return 1 - best / now, 1 - level(costs, num_shards) / best
