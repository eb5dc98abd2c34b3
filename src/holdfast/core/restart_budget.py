"""Failures: whether there was one too many, so that a run is ended, not repaired for ever.

Two limits: so many failures within a window, and the same failure again and again while the run
does not get on.
"""

from __future__ import annotations

import math

from holdfast.core.policy import Policy
from holdfast.core.protocol import Failure
from holdfast.core.sliding_window import Budget


class Failures:
    """Those of one run.

    Args:
        policy: How many are forgiven.
        now: This process's monotonic clock, seconds, as in every `now` here.
    """

    def __init__(self, policy: Policy, now: float) -> None:
        self._policy, self._went_on_at = policy, now
        self._budget = Budget(policy.failures, policy.window_s)
        self._last: tuple[object, int | None] = ("", None)
        self._repeats = 0

    def went_on(self, now: float) -> None:
        """Note that a generation has begun to train."""
        self._went_on_at = now

    def repeated(self, rank: int, failure: Failure, start: int | None, now: float) -> str:
        """Note how a rank has failed; returns why the run is to end, or nothing.

        Args:
            rank: Which.
            failure: How. That of a wrong replica is the same again on the same rank, whatever it
                says of the step.
            start: The step from which its generation went on, if that is known.
        """
        key = rank if failure.rollback else failure.cause
        soon = now - self._went_on_at < self._policy.repeat_s
        again = failure.repeatable and soon and (key, start) == self._last
        self._repeats = self._repeats + 1 if again else 0
        self._last = (key, start)
        if self._repeats >= self._policy.repeats > 0:
            times = f"{self._repeats + 1} times {self._getting_nowhere(failure)}"
            return f"rank {rank} {failure.cause}, {times}"
        return ""

    def too_many(self, what: str, now: float) -> str:
        """Note what was lost, in words; returns why the run is to end, or nothing."""
        if self._budget.spend(now):
            return ""
        limit, window = self._policy.failures, self._policy.window_s
        return (
            f"{what}, the last of more than {limit} failures in {window:.0f} s" if limit else what
        )

    def _getting_nowhere(self, failure: Failure) -> str:
        """What makes a failure the same again, in words."""
        if self._policy.repeat_s < math.inf:
            return f"within {self._policy.repeat_s:.0f} s of its start"
        anew = self._policy.anew or failure.rollback
        return f"without a {'checkpoint' if anew else 'step'} in between"
