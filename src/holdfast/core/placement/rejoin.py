"""Rejoin: how long a host waits before it joins a run again that took it for lost.

A host that can reach the coordinator, and not the other members, would stop the others each time it
joins. So one that is fenced soon after it joined waits, longer each time.
"""

from __future__ import annotations

from typing import Final

MIN_DELAY_S: Final = 5.0
MAX_DELAY_S: Final = 60.0
SOON_S: Final = 20.0
"""A host that cannot reach others is fenced this soon: it starts its workers, and they report."""


class RejoinDelay:
    """The delays of one host."""

    def __init__(self) -> None:
        self._delay_s = 0.0

    def after(self, served_s: float) -> float:
        """Time to wait now, seconds.

        Args:
            served_s: Time that the host took part since it joined, seconds.
        """
        longer_s = min(max(MIN_DELAY_S, 2 * self._delay_s), MAX_DELAY_S)
        self._delay_s = longer_s if served_s < SOON_S else 0.0
        return self._delay_s
