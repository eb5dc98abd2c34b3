"""Planner: the number of shards of each worker that ends a step soonest.

A worker with `n` shards takes `fixed + per_shard * n`. The slowest worker decides when the step
ends: its time is the plan's makespan.

Shard `k` of worker `i` ends at `fixed_i + per_shard_i * k`, and a plan takes the first ones of
each worker. A makespan `T` needs as many such ends up to `T` as there are shards, so the
`num_shards`-th smallest end is a lower bound of it, which `fastest` attains.

Every worker plans for itself, and all must agree. So only operations are used that IEEE 754 rounds
the same everywhere.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

ALIGNED_SLACK: Final = 1.02
"""Factor by which a step may take longer with fewer partial sums."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a step for one worker.

    Attributes:
        fixed_s: Part that does not depend on its shards, seconds.
        per_shard_s: One shard, seconds; more than 0.
        cap: The most shards that it can compute.
    """

    fixed_s: float
    per_shard_s: float
    cap: int

    def seconds(self, shards: int) -> float:
        """The time for so many shards."""
        return self.fixed_s + self.per_shard_s * shards

    def shards_within(self, seconds: float) -> int:
        """The most shards that take no longer, at least 1 and at most the cap."""
        shards = math.floor((seconds - self.fixed_s) / self.per_shard_s)
        return max(1, min(shards, self.cap))


def makespan(costs: Sequence[Cost], counts: Sequence[int]) -> float:
    """End of the slowest worker, seconds."""
    return max(cost.seconds(count) for cost, count in zip(costs, counts, strict=True))


def fastest(costs: Sequence[Cost], num_shards: int) -> tuple[int, ...]:
    """The counts with the least makespan: each worker has a shard, and no more than its cap.

    Takes O(W log W) for W workers, whatever the number of shards.

    Args:
        costs: Cost of each worker.
        num_shards: Between the number of workers and the sum of the caps.
    """
    # No plan is faster than `together`, so the counts within it are a start, short of a few shards.
    together = level(costs, num_shards)
    counts = [cost.shards_within(together) for cost in costs]
    rest = num_shards - sum(counts)
    nexts = [
        (cost.seconds(count + 1), rank)
        for rank, (cost, count) in enumerate(zip(costs, counts, strict=True))
        if count < cost.cap
    ]
    # Each of the rest goes where it ends soonest.
    heapq.heapify(nexts)
    for _ in range(rest):
        _, rank = nexts[0]
        counts[rank] += 1
        if counts[rank] < costs[rank].cap:
            heapq.heapreplace(nexts, (costs[rank].seconds(counts[rank] + 1), rank))
        else:
            heapq.heappop(nexts)
    for _ in range(-rest):  # the level was rounded up
        rank = max(
            (rank for rank, count in enumerate(counts) if count > 1),
            key=lambda rank: costs[rank].seconds(counts[rank]),
        )
        counts[rank] -= 1
    return tuple(counts)


def within(counts: Sequence[int], caps: Sequence[int]) -> tuple[int, ...]:
    """Counts that exceed no cap: the same, or else as even as the caps allow."""
    if all(count <= cap for count, cap in zip(counts, caps, strict=True)):
        return tuple(counts)
    return fastest([Cost(0.0, 1.0, cap) for cap in caps], sum(counts))


def level(costs: Sequence[Cost], num_shards: int) -> float:
    """End of all workers if shards could be divided: no plan is faster."""
    # Up to a time, workers have computed a number of shards that rises with pieces of a constant
    # slope: each worker joins when its first shard has ended, and leaves when it has its cap.
    bends = sorted(
        [(cost.seconds(1), 1 / cost.per_shard_s) for cost in costs]
        + [(cost.seconds(cost.cap), -1 / cost.per_shard_s) for cost in costs]
    )
    shards = float(len(costs))
    slope = 0.0
    time = bends[0][0]
    for bend, change in bends:
        more = slope * (bend - time)
        if shards + more >= num_shards:
            break
        shards = shards + more
        slope = slope + change
        time = bend
    # Rounding may leave a tiny slope once all caps are used up: all workers have ended by then.
    return min(time + (num_shards - shards) / slope, bends[-1][0]) if slope > 0 else time


def aligned(
    costs: Sequence[Cost],
    counts: Sequence[int],
    hosts: Sequence[range],
    slack: float = ALIGNED_SLACK,
) -> tuple[int, ...]:
    """Counts close to the fastest ones that leave fewer partial sums.

    Between two workers, the shards are cut where most leaves of the reduction tree meet on one
    side: at the roundest number in binary. Hosts come first, because their partial sums cross the
    network.

    Args:
        costs: Cost of each worker.
        counts: The fastest counts.
        hosts: The workers of each host, in order.
        slack: Factor by which the others may take longer.
    """
    # Hosts get ranges first, then the workers of a host divide its range.
    longest = makespan(costs, counts) * slack
    caps = [cost.shards_within(longest) for cost in costs]
    of_hosts = _ranges(
        range(sum(counts)), [(len(host), sum(caps[rank] for rank in host)) for host in hosts]
    )
    return tuple(
        len(part)
        for host, shards in zip(hosts, of_hosts, strict=True)
        for part in _ranges(shards, [(1, caps[rank]) for rank in host])
    )


def _ranges(shards: range, limits: Sequence[tuple[int, int]]) -> list[range]:
    """Neighbouring ranges, each with at least and at most so many shards as its limits say."""
    least = sum(low for low, _ in limits)
    most = sum(high for _, high in limits)
    ranges = []
    start = shards.start
    for low, high in limits:
        # Now least and most are of the ranges to the right, which must fit into the rest.
        least = least - low
        most = most - high
        end = _roundest(
            max(start + low, shards.stop - most), min(start + high, shards.stop - least)
        )
        ranges.append(range(start, end))
        start = end
    return ranges


def _roundest(first: int, last: int) -> int:
    """The number in `first..last` that is divisible by the greatest power of two; `first` > 0."""
    # The highest bit in which first - 1 and last differ is 1 in last: with zeros below it, last is
    # still above first - 1.
    shift = ((first - 1) ^ last).bit_length() - 1
    return last >> shift << shift
