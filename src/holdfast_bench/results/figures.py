"""Figures: what benchmarks print, medians with their spread, and ratios within a round."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TypedDict


class Spread(TypedDict):
    """Several measurements of one thing.

    Attributes:
        median, min, max: Of `values`.
        values: The measurements, in the order of the rounds.
    """

    median: float
    min: float
    max: float
    values: list[float]


def spread(values: Sequence[float], digits: int = 1) -> Spread:
    """The spread of `values`, rounded to `digits` after the point."""
    return {
        "median": round(statistics.median(values), digits),
        "min": round(min(values), digits),
        "max": round(max(values), digits),
        "values": [round(value, digits) for value in values],
    }


def ratio(values: Sequence[float], others: Sequence[float]) -> float:
    """The median of `values` over `others`, pair by pair: each pair ran in one round."""
    pairs = zip(values, others, strict=True)
    return round(statistics.median(value / other for value, other in pairs), 3)
