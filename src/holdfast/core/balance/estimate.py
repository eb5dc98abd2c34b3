"""Estimate: what a shard costs a worker, from the times of its last steps.

A step is one sample. The cost is the mean of the middle half, so that single slow steps do not
count. A lasting change of speed is found by a two-sided CUSUM (Page, "Continuous inspection
schemes", Biometrika 1954) of the relative deviation: then only the samples since the change stay.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

WINDOW: Final = 64
FEW: Final = 8
"""With fewer samples their spread is not known; `UNKNOWN_SPREAD` is assumed."""
EVERY: Final = 8
"""Samples after which the cost is computed again, once there are that many."""
UNKNOWN_SPREAD: Final = 0.1
LEAST_SPREAD: Final = 0.01
LEAST_UNIT: Final = 0.02
"""The least spread, relative, in units of which a deviation counts."""
CLIP: Final = 5.0
"""Most that one deviation counts for, so that two in a row are needed."""
ALLOWANCE: Final = 1.5
"""Deviation above which it counts."""
THRESHOLD: Final = 6.5
"""The sum of deviations that is a change."""
SPREAD_OF_MEDIAN: Final = 1.3
"""A standard deviation, in medians of the absolute deviation: less than the 1.48 of a normal
distribution, since uniform noise has 1.15.
"""


@dataclass(slots=True)
class _Drift:
    """One side of the CUSUM.

    Attributes:
        total: The sum; never negative.
        samples: Number of deviations since it was 0.
    """

    total: float = 0.0
    samples: int = 0

    def add(self, deviation: float) -> bool:
        """Count one deviation; returns whether it is a change."""
        self.total += deviation - ALLOWANCE
        if self.total <= 0.0:
            self.total = 0.0
            self.samples = 0
            return False
        self.samples += 1
        return self.total > THRESHOLD


@dataclass(slots=True)
class Estimate:
    """The cost of one worker, from its last `WINDOW` steps.

    Attributes:
        per_shard_s: Seconds of one shard; 0 without a sample.
        fixed_s: Seconds of a step that do not depend on the number of shards.
        spread: Relative standard deviation of a sample.
    """

    per_shard_s: float = 0.0
    fixed_s: float = 0.0
    spread: float = UNKNOWN_SPREAD
    _shards: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _rests: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _added: int = 0
    _slower: _Drift = field(default_factory=_Drift)
    _faster: _Drift = field(default_factory=_Drift)

    @property
    def samples(self) -> int:
        """Number of samples in the estimate."""
        return len(self._shards)

    @property
    def variance(self) -> float:
        """Variance of `per_shard_s`, seconds squared."""
        error = self.per_shard_s * self.spread
        return error * error / len(self._shards)

    def add(self, per_shard_s: float, fixed_s: float) -> bool:
        """Take the times of one step.

        Args:
            per_shard_s: Seconds of one shard, the mean over the step's; more than 0.
            fixed_s: The rest of the step.

        Returns:
            Whether the speed has changed.
        """
        # The sample is compared with the cost before it takes part in it.
        has_changed = self._has_changed(per_shard_s)
        self._shards.append(per_shard_s)
        self._rests.append(fixed_s)
        # The sum was last 0 where the change began: older samples are of the speed before.
        if has_changed:
            self._keep(max(self._slower.samples, self._faster.samples))
            self._slower = _Drift()
            self._faster = _Drift()
        self._added += 1
        if has_changed or len(self._shards) <= 2 * EVERY or self._added % EVERY == 0:
            self._compute()
        return has_changed

    def _has_changed(self, sample: float) -> bool:
        cost = self.per_shard_s
        if not self._shards:
            return False
        # Twice as slow and twice as fast deviate by as much; one outlier counts for CLIP at most.
        unit = max(self.spread, LEAST_UNIT)
        deviation = (sample / cost - 1 if sample > cost else 1 - cost / sample) / unit
        deviation = max(-CLIP, min(CLIP, deviation))
        # Both sides take every sample, so no `or` that leaves one out.
        is_slower = self._slower.add(deviation)
        is_faster = self._faster.add(-deviation)
        return is_slower or is_faster

    def _keep(self, samples: int) -> None:
        while len(self._shards) > samples:
            self._shards.popleft()
            self._rests.popleft()

    def _compute(self) -> None:
        cost = _middle_mean(self._shards)
        self.per_shard_s = cost
        self.fixed_s = median(self._rests)
        if len(self._shards) < FEW:
            self.spread = UNKNOWN_SPREAD
            return
        deviations = [abs(sample / cost - 1) for sample in self._shards]
        self.spread = max(SPREAD_OF_MEDIAN * median(deviations), LEAST_SPREAD)


def _middle_mean(samples: Sequence[float]) -> float:
    ordered = sorted(samples)
    outside = len(ordered) // 4
    middle = ordered[outside : len(ordered) - outside]
    return math.fsum(middle) / len(middle)  # exact, so the same on every Python


def median(samples: Sequence[float]) -> float:
    """The middle of the samples, or the mean of the middle two."""
    ordered = sorted(samples)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
