"""Restart budget: ends a run that fails again and again instead of recovering it forever.

Two limits: a number of failures within a window, and failures in a row without progress.
"""

from __future__ import annotations

import math
from collections import deque

from holdfast.core.policy import RecoveryPolicy
from holdfast.core.protocol import Failure


class SlidingWindow:
    """Counts failures in a sliding window.

    Args:
        max_failures: Number of failures that are tolerated within the window.
        window_s: Its length, seconds.
    """

    def __init__(self, max_failures: int, window_s: float) -> None:
        self._max_failures = max_failures
        self._window_s = window_s
        self._times: deque[float] = deque()

    def admit(self, now: float) -> bool:
        """Count a failure; returns whether it is still tolerated."""
        self._times.append(now)
        while self._times[0] <= now - self._window_s:
            self._times.popleft()
        return len(self._times) <= self._max_failures


class RestartBudget:
    """Counts the failures of one run.

    Args:
        policy: The limits.
        now: This process's monotonic clock, seconds, as in every `now` here.
    """

    def __init__(self, policy: RecoveryPolicy, now: float) -> None:
        self._policy = policy
        self._resumed_at = now
        self._window = SlidingWindow(policy.max_failures, policy.window_s)
        self._last: tuple[int | None, int | None] | None = None
        self._in_a_row = 0

    def on_resumed(self, now: float) -> None:
        """Note that a generation has begun to train."""
        self._resumed_at = now

    def on_failure(self, rank: int, failure: Failure, step: int | None, now: float) -> str:
        """Note how a worker has failed; returns why the run must end, or nothing.

        Failures without progress count together, whatever their messages and ranks: an error of
        user code may show on any worker, and name what differs each time. Failures from outside,
        such as a kill, are left out.

        Args:
            rank: The worker.
            failure: Its failure. A wrong replica counts by its rank.
            step: The step from which its generation resumed, if that is known.
            now: Time of the failure.
        """
        if not failure.repeatable:
            return ""
        # Progress moves the step from which generations resume; a wrong replica is one rank's own.
        key = (step, rank if failure.state_untrusted else None)
        soon = now - self._resumed_at < self._policy.repeat_window_s
        self._in_a_row = self._in_a_row + 1 if soon and key == self._last else 1
        self._last = key
        if self._in_a_row > self._policy.max_repeats > 0:
            failures = f"{self._in_a_row} failures {self._without_progress(failure)}"
            return f"rank {rank} {failure.cause}; {failures}"
        return ""

    def on_loss(self, what: str, now: float) -> str:
        """Count a failure, named by `what`; returns why the run must end, or nothing."""
        if self._window.admit(now):
            return ""
        limit = self._policy.max_failures
        window = self._policy.window_s
        exhausted = f"restart budget exhausted: more than {limit} failures in {window:.0f} s"
        return f"{what}; {exhausted}" if limit else what

    def _without_progress(self, failure: Failure) -> str:
        """Common trait of the failures in a row, in words."""
        if self._policy.repeat_window_s < math.inf:
            return f"within {self._policy.repeat_window_s:.0f} s of the start"
        restart_all = self._policy.restart_all or failure.state_untrusted
        return f"without a {'checkpoint' if restart_all else 'step'} in between"
