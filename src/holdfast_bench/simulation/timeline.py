"""Virtual time: what is scheduled, what has happened, and the source of randomness."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any


class Timeline:
    """The virtual time of one simulation.

    Args:
        seed: The seed of all randomness.

    Attributes:
        now: Seconds since the beginning.
        chance: The source of randomness.
        log: What has happened, one line each: `time what`.
    """

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.log = list[str]()
        self.chance = random.Random(seed)  # chance, not secrecy
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()

    def at(self, time: float, act: Callable[..., None], *arguments: Any) -> None:
        """Schedule a call at a time."""
        heapq.heappush(self._queue, (time, next(self._order), act, arguments))

    def after(self, delay: float, act: Callable[..., None], *arguments: Any) -> None:
        """Schedule a call after a delay."""
        self.at(self.now + delay, act, *arguments)

    def note(self, what: str) -> None:
        """Log what happens now."""
        self.log.append(f"{self.now:.6f} {what}")

    def step(self, limit: float) -> bool:
        """Make the next call; returns False if none is due up to `limit`."""
        if not self._queue or self._queue[0][0] > limit:
            return False
        self.now, _, act, arguments = heapq.heappop(self._queue)
        act(*arguments)
        return True
