"""Stragglers: workers that are much slower than the others, so that a step is no slower without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from holdfast.core.balance.estimate import median
from holdfast.core.balance.planner import Cost, fastest, makespan
from holdfast.core.balance.slowdowns import SlowReason

SLOW: Final = 4
"""A straggler takes this many times as long for a shard as the others."""
SLOW_STEPS: Final = 5
"""For how many steps it does before it has to leave."""
FIT: Final = 2
"""It may return once it takes no more than so many times as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """A worker that should leave for standby.

    Attributes:
        rank: The worker.
        reason: Cause of its slowness, in words.
        threshold_s: It may return once a shard takes it no longer, seconds.
        step_s: Time of a step without it, seconds.
    """

    rank: int
    reason: str
    threshold_s: float
    step_s: float

    def because(self, reason: SlowReason | None) -> Straggler:
        """Add the cause of its additional time; None if that is not known."""
        return self if reason is None else replace(self, reason=f"{self.reason} ({reason.value})")


class StragglerFinder:
    """Finds the straggler of one generation, if there is one.

    Args:
        ranks: The members.
        num_shards: Shards of a step.
    """

    def __init__(self, ranks: Sequence[int], num_shards: int) -> None:
        self._ranks = ranks
        self._num_shards = num_shards
        self._slow_steps = 0

    def observe(self, costs: Sequence[Cost]) -> Straggler | None:
        """Look at the costs of each member after a step."""
        per_shard_s = [cost.per_shard_s for cost in costs]
        slowest = per_shard_s.index(max(per_shard_s))
        others = [cost for member, cost in enumerate(costs) if member != slowest]
        typical_s = median([cost.per_shard_s for cost in others])
        is_slow = per_shard_s[slowest] >= SLOW * typical_s
        self._slow_steps = self._slow_steps + 1 if is_slow else 0
        if self._slow_steps < SLOW_STEPS:
            return None
        # It must leave only if the others alone are as fast as all together with the best plan.
        shards = self._num_shards
        if sum(cost.cap for cost in others) < shards:
            return None
        step_s = makespan(others, fastest(others, shards))
        if step_s > makespan(costs, fastest(costs, shards)):
            return None
        return Straggler(
            rank=self._ranks[slowest],
            reason=f"a shard takes it {per_shard_s[slowest] / typical_s:.1f} times as long",
            threshold_s=FIT * typical_s,
            step_s=step_s,
        )
