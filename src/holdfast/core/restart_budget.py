"""Failures: whether there was one too many, so that a run is ended, not repaired for ever.

Two limits: so many failures within a window, and the same failure again and again while the run
does not get on.
"""

from __future__ import annotations

import math

from holdfast.core.policy import RecoveryPolicy
from holdfast.core.protocol import Failure
from holdfast.core.sliding_window import SlidingWindow


class RestartBudget:
    """Those of one run.

    Args:
        policy: How many are forgiven.
        now: This process's monotonic clock, seconds, as in every `now` here.
    """

    def __init__(self, policy: RecoveryPolicy, now: float) -> None:
        self._policy, self._resumed_at = policy, now
        self._window = SlidingWindow(policy.max_failures, policy.window_s)
        self._last: tuple[object, int | None] = ("", None)
        self._repeats = 0

    def on_resumed(self, now: float) -> None:
        """Note that a generation has begun to train."""
        self._resumed_at = now

    def on_failure(self, rank: int, failure: Failure, start: int | None, now: float) -> str:
        """Note how a rank has failed; returns why the run is to end, or nothing.

        Args:
            rank: Which.
            failure: How. That of a wrong replica is the same again on the same rank, whatever it
                says of the step.
            start: The step from which its generation went on, if that is known.
        """
        key = rank if failure.state_untrusted else failure.cause
        soon = now - self._resumed_at < self._policy.repeat_window_s
        again = failure.repeatable and soon and (key, start) == self._last
        self._repeats = self._repeats + 1 if again else 0
        self._last = (key, start)
        if self._repeats >= self._policy.max_repeats > 0:
            times = f"{self._repeats + 1} times {self._without_progress(failure)}"
            return f"rank {rank} {failure.cause}, {times}"
        return ""

    def on_loss(self, what: str, now: float) -> str:
        """Note what was lost, in words; returns why the run is to end, or nothing."""
        if self._window.admit(now):
            return ""
        limit, window = self._policy.max_failures, self._policy.window_s
        return (
            f"{what}, the last of more than {limit} failures in {window:.0f} s" if limit else what
        )

    def _without_progress(self, failure: Failure) -> str:
        """What makes a failure the same again, in words."""
        if self._policy.repeat_window_s < math.inf:
            return f"within {self._policy.repeat_window_s:.0f} s of its start"
        anew = self._policy.restart_all or failure.state_untrusted
        return f"without a {'checkpoint' if anew else 'step'} in between"
