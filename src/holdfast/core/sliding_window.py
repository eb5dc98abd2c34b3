"""Restart budget: a run that fails again and again is ended, not repaired for ever."""

from __future__ import annotations

from collections import deque


class SlidingWindow:
    """Counts failures in a sliding window.

    Args:
        failures: How many are forgiven within the window.
        window_s: Its length, seconds.
    """

    def __init__(self, failures: int, window_s: float) -> None:
        self._failures, self._window_s = failures, window_s
        self._times: deque[float] = deque()

    def admit(self, now: float) -> bool:
        """Note a failure; returns whether it is still forgiven."""
        self._times.append(now)
        while self._times[0] <= now - self._window_s:
            self._times.popleft()
        return len(self._times) <= self._failures
