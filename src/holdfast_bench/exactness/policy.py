"""A balance policy that is never content: another plan in each step."""

from __future__ import annotations

import random
from collections.abc import Sequence

from holdfast.core.balance.planner import Cost


def restless(costs: Sequence[Cost], num_shards: int) -> list[int]:
    """Counts at random, from the digits of what was measured: the same on every worker."""
    counts = [1] * len(costs)
    chance = random.Random(repr(costs))
    for _ in range(num_shards - len(costs)):
        counts[chance.randrange(len(costs))] += 1
    return counts
