"""Statistics of a few measurements: no distribution is assumed. Pure.

Two series are compared by the ratios of all pairs: their median is the estimate, and order
statistics of them bound it (Hodges and Lehmann, "Estimates of Location Based on Rank Tests", 1963).
Whether the series differ at all is the test of Mann and Whitney (1947).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

CONFIDENCE_Z: Final = 1.96
"""Standard deviations of a normal distribution that 95 % are within."""
SIGNIFICANT: Final = 0.01
"""A difference that chance makes less often than this is one."""
FEWEST: Final = 5
"""Measurements of each series below which no difference is significant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change from one series to another.

    Attributes:
        ratio: New over old.
        low, high: Bounds of the ratio, with 95 % confidence.
        is_significant: True if chance is an unlikely reason.
    """

    ratio: float
    low: float
    high: float
    is_significant: bool


def change(old: Sequence[float], new: Sequence[float]) -> Change:
    """The change from `old` to `new`, which are above 0 and not empty."""
    from scipy.stats import mannwhitneyu  # half a second, which every command would pay

    ratios = sorted(after / before for before in old for after in new)
    count = len(ratios)
    deviation = math.sqrt(count * (len(old) + len(new) + 1) / 12)
    margin = max(0, math.floor(count / 2 - CONFIDENCE_Z * deviation))
    chance = float(mannwhitneyu(old, new, alternative="two-sided").pvalue)
    return Change(
        ratio=statistics.median(ratios),
        low=ratios[margin],
        high=ratios[count - 1 - margin],
        is_significant=min(len(old), len(new)) >= FEWEST and chance < SIGNIFICANT,
    )
