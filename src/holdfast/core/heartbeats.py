"""Heartbeats: detects hosts whose heartbeats have stopped.

A host that reports every second, now and then a little late, is suspected soon after it goes
silent. A host with irregular intervals gets a later deadline: on its network, a long gap means
nothing. So each host sets its own deadline, by how long its gaps are and how much they vary:

    deadline = last arrival + max(floor, mean gap + 4 · mean deviation of the gap)

Mean and deviation are smoothed: each arrival moves them by 1/8 and 1/4 of what is new, as TCP does
with round-trip times (RFC 6298, section 2). Heartbeats of one second with gaps of 0.9 to 1.1 s give
a deadline of about 1.4 s, which the floor raises. The method is that of Bertier, Marin and Sens,
"Implementation and performance evaluation of an adaptable failure detector" (DSN 2002). A report
that comes early, because something has happened, says nothing about how late others may be: its gap
counts as one interval.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

GAP_GAIN: Final = 1 / 8
DEVIATION_GAIN: Final = 1 / 4
DEVIATIONS: Final = 4
"""The constants of RFC 6298, section 2."""
JOINT_LOSS_S: Final = 0.1
"""Hosts without a connection whose deadlines are no further apart are lost together."""


@dataclass(slots=True)
class _Arrivals:
    """The arrivals of one host's heartbeats.

    Attributes:
        limit: Latest time at which it is suspected; reset by its next heartbeat.
        queued: Time of its earliest entry in the queue, which is never after its deadline.
    """

    last: float
    gap: float
    deviation: float
    limit: float = math.inf
    queued: float = math.inf

    def add(self, times: Iterable[float], interval_s: float) -> None:
        """Add heartbeats, which are due at intervals."""
        last = self.last
        mean = self.gap
        deviation = self.deviation
        for time in times:
            # An early report says nothing about late ones: its gap counts as one interval.
            gap = max(time - last, interval_s)
            last = time
            # The deviation is taken from the old mean, as in RFC 6298.
            deviation += DEVIATION_GAIN * (abs(gap - mean) - deviation)
            mean += GAP_GAIN * (gap - mean)
        self.last = last
        self.gap = mean
        self.deviation = deviation
        # It was heard, so a broken connection is no cause for suspicion any more.
        self.limit = math.inf


class Heartbeats:
    """Arrivals of each host's heartbeats, and the deadline of the next.

    Args:
        interval_s: Expected interval of a host's heartbeats, seconds.
        floor_s: A silence that is never suspected, seconds.
    """

    def __init__(self, *, interval_s: float, floor_s: float) -> None:
        self._interval_s = interval_s
        self._floor_s = floor_s
        self._arrivals: dict[str, _Arrivals] = {}
        self._queue: list[tuple[float, str]] = []

    def record(self, host: str, now: float) -> None:
        """Record a heartbeat of `host`."""
        arrivals = self._arrivals.get(host)
        if arrivals is None:
            self._arrivals[host] = _Arrivals(now, self._interval_s, self._interval_s / 4)
        else:
            arrivals.add((now,), self._interval_s)
        self._enqueue(host)

    def shorten_deadline(self, host: str, deadline: float) -> None:
        """Suspect `host` by `deadline` unless it is heard first."""
        if host in self._arrivals:
            self._arrivals[host].limit = deadline
            self._enqueue(host)

    def remove(self, host: str) -> None:
        """Expect no more heartbeats from `host`."""
        self._arrivals.pop(host, None)

    def pause(self, host: str) -> None:
        """Stop expecting heartbeats from `host` until `resume`."""
        self._arrivals[host].queued = math.inf

    def resume(self, host: str, times: Iterable[float]) -> None:
        """Record the heartbeats of `host` while it was paused, and expect more, unless it was
        removed meanwhile.
        """
        if host in self._arrivals:
            self._arrivals[host].add(times, self._interval_s)
            self._enqueue(host)

    def deadline_of(self, host: str) -> float:
        """Time at which `host` is suspected if it stays silent."""
        arrivals = self._arrivals[host]
        patience = arrivals.gap + DEVIATIONS * arrivals.deviation
        return min(arrivals.last + max(self._floor_s, patience), arrivals.limit)

    def next_deadline(self) -> float | None:
        """Time at which to ask for suspects again; a host may have been heard by then."""
        # Hosts that were heard since their entries were made are no reason to ask.
        while self._queue:
            queued, host = self._queue[0]
            arrivals = self._arrivals.get(host)
            if arrivals is None or arrivals.queued != queued:
                heapq.heappop(self._queue)
                continue
            deadline = self.deadline_of(host)
            if deadline <= queued:
                return queued
            arrivals.queued = deadline
            heapq.heapreplace(self._queue, (deadline, host))
        return None

    def suspects(self, now: float) -> list[str]:
        """Hosts whose deadline has passed; each is named once, until it is heard again.

        A rack that loses its power is one loss, not twenty within a few milliseconds: with a host
        go those that have lost their connection too and are about to be suspected.
        """
        hosts: list[str] = []
        others: list[str] = []
        soon = now
        while self._queue and self._queue[0][0] <= soon:
            queued, host = heapq.heappop(self._queue)
            arrivals = self._arrivals.get(host)
            # A host that was removed or paused, or one with an earlier entry than this.
            if arrivals is None or arrivals.queued != queued:
                continue
            # Without a connection it need not be overdue: it goes with the one that is.
            if self.deadline_of(host) <= now or arrivals.limit <= soon:
                arrivals.queued = math.inf
                hosts.append(host)
                soon = now + JOINT_LOSS_S
            else:  # it was heard since the entry was made, or is due soon and connected
                arrivals.queued = math.inf
                others.append(host)
        for host in others:
            self._enqueue(host)
        return hosts

    def _enqueue(self, host: str) -> None:
        """Keep the host's entry in the queue from being later than its deadline."""
        # A heartbeat moves the deadline back, but not the entry: `suspects` puts in a new one when
        # the old one is due. So most heartbeats cost no push.
        arrivals = self._arrivals[host]
        deadline = self.deadline_of(host)
        if deadline < arrivals.queued:
            arrivals.queued = deadline
            heapq.heappush(self._queue, (deadline, host))
