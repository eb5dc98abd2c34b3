"""Virtual time: what is to happen, what has happened, and what is left to chance."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any


class Timeline:
    """One history.

    Args:
        seed: Fixes all that is left to chance.

    Attributes:
        now: Seconds since the beginning.
        chance: Where all draw from.
        log: What has happened, a line each: `time what`.
    """

    def __init__(self, seed: int) -> None:
        self.now, self.log = 0.0, list[str]()
        self.chance = random.Random(seed)  # chance, not secrecy
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()

    def at(self, time: float, act: Callable[..., None], *arguments: Any) -> None:
        """Have something happen at a time."""
        heapq.heappush(self._queue, (time, next(self._order), act, arguments))

    def after(self, delay: float, act: Callable[..., None], *arguments: Any) -> None:
        """Have something happen after a while."""
        self.at(self.now + delay, act, *arguments)

    def note(self, what: str) -> None:
        """Write down what happens now."""
        self.log.append(f"{self.now:.6f} {what}")

    def step(self, limit: float) -> bool:
        """Let the next thing happen; returns False if there is none up to `limit`."""
        if not self._queue or self._queue[0][0] > limit:
            return False
        self.now, _, act, arguments = heapq.heappop(self._queue)
        act(*arguments)
        return True
