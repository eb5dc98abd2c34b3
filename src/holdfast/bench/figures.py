"""What benchmarks print: medians with their spread, and ratios of what ran in the same round."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def spread(values: Sequence[float], digits: int = 1) -> dict[str, float]:
    """Median, minimum and maximum."""
    return {
        "median": round(statistics.median(values), digits),
        "min": round(min(values), digits),
        "max": round(max(values), digits),
    }


def ratio(values: Sequence[float], others: Sequence[float]) -> float:
    """The median of `values` over `others`, pair by pair: each pair ran in one round."""
    pairs = zip(values, others, strict=True)
    return round(statistics.median(value / other for value, other in pairs), 3)
