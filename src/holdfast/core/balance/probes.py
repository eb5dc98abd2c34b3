"""Probes: when a worker on standby measures itself, and when it is fit to return.

It computes one shard every few steps, and is fit after two fast ones in a row. A worker that was
evicted before waits longer each time: one whose speed comes and goes costs the others a generation
each time.
"""

from __future__ import annotations

import math
from typing import Final

from holdfast.core.protocol import Eviction

STEPS_BETWEEN: Final = 3
"""Steps from one probe to the next."""
FAST_PROBES: Final = 2
"""Fast probes in a row after which a worker is fit."""
MAX_DELAY: Final = 64
"""Factor by which the wait for a probe grows at most."""


class Probes:
    """The probes of one worker.

    Attributes:
        is_on_standby: True if the worker is on standby.
        due_at: Time at which the next one is due, monotonic seconds; infinite if none is.
    """

    def __init__(self) -> None:
        self.is_on_standby = False
        self.due_at = math.inf
        self._delay = 1
        self._rest_s = 0.0
        self._threshold_s = 0.0
        self._fast = 0

    def begin(self, eviction: Eviction, now: float) -> None:
        """Note that the worker is on standby; repeated in each generation of the others."""
        if self.is_on_standby:
            return
        # The delay doubles with each eviction of this worker, and is never reset.
        self._rest_s = STEPS_BETWEEN * eviction.step_s * self._delay
        self._delay = min(2 * self._delay, MAX_DELAY)
        self._threshold_s = eviction.threshold_s
        self._fast = 0
        self.is_on_standby = True
        self.due_at = now + self._rest_s

    def end(self) -> None:
        """Note that the worker is a member."""
        self.is_on_standby = False
        self.due_at = math.inf

    def on_measured(self, seconds: float, now: float) -> bool:
        """Take the time of a shard; returns whether the worker is fit."""
        self._fast = self._fast + 1 if seconds <= self._threshold_s else 0
        is_fit = self._fast >= FAST_PROBES
        self.due_at = math.inf if is_fit else now + self._rest_s
        return is_fit
