"""Checkpoint interval: how long a run trains from one checkpoint to the next. Pure.

Checkpoints that are too frequent cost training more than a failure would, and those that are too
rare lose more of it. With a stall δ for each checkpoint and a mean time M between failures that
need one, the loss is least at √(2·δ·M): Young, "A First Order Approximation to the Optimum
Checkpoint Interval", CACM 17(9), 1974. How long a restart takes changes that only in the next
order: Daly, FGCS 22(3), 2006.
"""

from __future__ import annotations

import math
from typing import Final

PRIOR_S: Final = 24 * 3600.0
"""A run is taken to have trained for so long before its start, with one failure."""
FIRST_S: Final = 30.0
"""The first interval, before it is known what a checkpoint costs."""
MAX_S: Final = 1800.0
"""The longest interval."""


class CheckpointInterval:
    """The interval of one run.

    Args:
        given_s: The interval that the job sets, seconds; 0 for none, None if it is chosen here.
        now: This process's monotonic clock, seconds, as in every `now` here.
    """

    def __init__(self, given_s: float | None, now: float) -> None:
        self._given_s = given_s
        self._began_at = now
        self._stall_s: float | None = None
        self._write_s = 0.0
        self._failures = 0

    def on_saved(self, stall_s: float, write_s: float) -> None:
        """Take note of what a checkpoint has cost.

        Args:
            stall_s: Time that the workers were held up, seconds.
            write_s: Time until it was written, seconds.
        """
        self._stall_s = stall_s
        self._write_s = write_s

    def on_restored(self) -> None:
        """Take note of a failure after which a checkpoint was needed."""
        self._failures += 1

    def seconds(self, now: float) -> float:
        """The time from one checkpoint to the next; 0 for never."""
        if self._given_s is not None:
            return self._given_s
        if self._stall_s is None:
            return FIRST_S
        # With no failure yet the prior keeps the mean finite.
        between_failures_s = (now - self._began_at + PRIOR_S) / (self._failures + 1)
        # Half of the time at most goes into writing, whatever the formula says.
        best_s = math.sqrt(2 * self._stall_s * between_failures_s)
        return min(max(best_s, 2 * self._write_s), MAX_S)
