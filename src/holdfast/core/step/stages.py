"""Stages: contiguous groups of a model's parts, one for each worker of a pipeline."""

from __future__ import annotations

import itertools
from collections.abc import Sequence


def cut(costs: Sequence[float], num_stages: int) -> list[range]:
    """Divide parts into stages so that the most expensive stage costs as little as possible; of
    equal cuts, that with the most parts in early stages.

    Args:
        costs: Cost of each part, in any unit.
        num_stages: Number of stages; at most the number of parts. None is empty.
    """
    num_parts = len(costs)
    assert 0 < num_stages <= num_parts, f"{num_parts} parts in {num_stages} stages"
    before = [0.0, *itertools.accumulate(costs)]
    # The least cost of the most expensive of so many stages, which hold the first parts, and where
    # the last of them begins.
    best = [(0.0, 0)] + [(float("inf"), 0)] * num_parts
    starts = list[list[int]]()
    for stage in range(num_stages):
        longer = [(float("inf"), 0)] * (num_parts + 1)
        for end in range(stage + 1, num_parts - (num_stages - stage - 1) + 1):
            longer[end] = min(
                (max(best[start][0], before[end] - before[start]), -start)
                for start in range(stage, end)
            )
        best = longer
        starts.append([-start for _, start in longer])
    ranges = list[range]()
    end = num_parts
    for stage in reversed(range(num_stages)):
        start = starts[stage][end]
        ranges.insert(0, range(start, end))
        end = start
    return ranges
