"""Verification: which shards are computed a second time, by another worker, and what that tells.

Of every `stride` shards that a rank computes one is checked, where the stride is a prime. Which one
changes by irrational parts of the stride, so that no fault in every n-th shard stays out of step
with the checks, also if it counts the shards that the rank verifies for others.
All ranks with equal shares are checked in the same steps: they check each other side by side.

If members find different digests of what must be equal, `wrong_ranks` decides which are wrong.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from holdfast.core.step.plan import Plan

MIN_SHARE: Final = 1e-6
"""The least share that is not 0: finding a much longer stride would take seconds."""
_GOLDEN: Final = (math.sqrt(5) - 1) / 2
_LEAP: Final = 0.8
"""Between the two shards of a pair, of a stride: the best of fifty for periods up to ten."""


def checked_shards(plan: Plan, place: int, step: int, rate: float) -> list[int]:
    """The shards of one member in one step that another member computes too.

    Args:
        plan: For the members there are.
        place: Position of the member.
        step: Steps committed before.
        rate: The least share of shards to check, 0 or MIN_SHARE to 1.
    """
    # Shards are numbered through all steps, as if the plan had always been this one.
    shards = plan.shards_of(place)
    first = step * len(shards)
    return [shard for at, shard in enumerate(shards) if is_checked(first + at, rate)]


def is_checked(number: int, rate: float) -> bool:
    """True if the `number`-th shard that a rank computes is checked.

    Args:
        number: From 0.
        rate: The least share of shards to check, 0 to 1.
    """
    if rate <= 0:
        return False
    stride = _stride(rate)
    # One shard in each range of `stride`; the ranges form pairs, whose offsets move irrationally.
    pair, second = divmod(number // stride, 2)
    return number % stride == math.floor((pair * _GOLDEN + second * _LEAP) % 1 * stride)


@lru_cache(maxsize=1)
def _stride(rate: float) -> int:
    """The largest prime that is not above `1 / rate`, or 1."""
    limit = math.floor(1 / rate + 1e-9)
    primes = (n for n in range(limit, 1, -1) if all(n % d for d in range(2, math.isqrt(n) + 1)))
    return next(primes, 1)


def most_common(digests: Mapping[int, int]) -> tuple[int, bool]:
    """The digest that most ranks found, and whether more than half of them did."""
    (digest, count), *_ = Counter(digests.values()).most_common()
    return digest, 2 * count > len(digests)


def wrong_ranks(digests: Mapping[int, int], before: Mapping[int, int] | None = None) -> list[int]:
    """The ranks that are wrong.

    The digest of more than half of the ranks is right. Without such a majority, a rank that
    contradicts its own earlier digest is wrong, if it is the only one.

    Args:
        digests: Digests that the ranks found, all at the same time.
        before: Digests that some ranks, not necessarily these, found earlier for the same thing.

    Returns:
        The wrong ranks in order; empty if none is wrong, or if it cannot be told which.
    """
    before = before or {}
    common, is_majority = most_common(digests)
    if is_majority:
        pairs = [*digests.items(), *before.items()]
        return sorted({rank for rank, digest in pairs if digest != common})
    contradicting = [rank for rank, digest in before.items() if digests.get(rank) != digest]
    return contradicting if len(contradicting) == 1 else []
