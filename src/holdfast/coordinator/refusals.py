"""Refusals: what is refused to other hosts, counted, and logged once for each address."""

from __future__ import annotations

from collections import Counter
from typing import Final

from holdfast.rundir.json_lines import EventLog

MAX_LOGGED: Final = 200
"""The most refusals that are logged one by one."""


class Refused(Exception):
    """A host is refused.

    Args:
        reason: Cause, in a few words without what differs from case to case.
        advice: Remedy for its owner.
        is_over: True if the reason is that the run has ended.
    """

    def __init__(self, reason: str, advice: str, *, is_over: bool = False) -> None:
        super().__init__(f"{reason}; {advice}")
        self.reason = reason
        self.is_over = is_over


class Refusals:
    """The refusals of one coordinator.

    Args:
        log: The run's log of events.

    Attributes:
        counts: Number of refusals, by reason.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._logged: set[tuple[str, str]] = set()
        self.counts = Counter[str]()

    def add(self, address: str, reason: str) -> None:
        """Count a refusal, and log the first of its kind from this address."""
        self.counts[reason] += 1
        key = address, reason
        if key in self._logged or len(self._logged) >= MAX_LOGGED:
            return
        self._logged.add(key)
        self._log.event("host-refused", address=address, reason=reason)

    def log_counts(self) -> None:
        """Log how many there were, if there were any."""
        if self.counts:
            self._log.event("refusals-counted", counts=dict(self.counts))
