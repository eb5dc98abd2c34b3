"""Hangs: when a worker that is alive no longer gets on.

Only what cannot be work counts. A worker that the kernel holds stopped does nothing, whatever it
was at. One that computes uses the processor, so if it does not, for much longer than it ever took,
it is stuck. Who waits for others or for samples is never suspected.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field
from typing import Final

STOPPED_S: Final = 0.8
"""How long a process may be stopped, seconds."""
OWN_S: Final = 1.0
"""How long our own code may go without using the processor, seconds."""
SLACK: Final = 3
"""And how much longer than the longest of the last times."""
RECENT: Final = 20
GAP_S: Final = 1.0
"""Between two looks that are further apart, whoever looks was held up himself."""


class Activity(enum.Enum):
    """What a worker is at.

    OWN      our code: reducing, updating
    USER     the user's: forward and backward pass, evaluation
    WAITING  for others, for samples, for a disk
    """

    OWN = "own"
    USER = "user"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A look at a worker.

    Attributes:
        activity: What it is at.
        since: Since when, seconds on any clock.
        cpu_s: Processor time that it has used so far, seconds.
        stopped: Whether the kernel holds it stopped.
    """

    activity: Activity
    since: float
    cpu_s: float
    stopped: bool


@dataclass(slots=True)
class _Known:
    last: Sighting
    seen_at: float
    idle_since: float
    stopped_since: float | None = None
    durations: dict[Activity, deque[float]] = field(default_factory=dict)


class HangWatch:
    """Looks at workers again and again.

    Args:
        user_s: How long the user's code may go without using the processor, seconds.
    """

    def __init__(self, user_s: float) -> None:
        self._limits = {Activity.OWN: OWN_S, Activity.USER: user_s}
        self._known: dict[int, _Known] = {}

    def see(self, process: int, sighting: Sighting, now: float) -> str:
        """Take a look at a worker; returns why it is held to hang, or nothing."""
        known = self._known.get(process)
        if known is None or now - known.seen_at > GAP_S:
            self._known[process] = _Known(sighting, now, now)
            return ""
        self._compare(known, sighting, now)
        if known.stopped_since is not None and now - known.stopped_since >= STOPPED_S:
            return f"was stopped for {now - known.stopped_since:.1f} s"
        if sighting.activity is Activity.WAITING or sighting.stopped:
            return ""
        recent = known.durations.get(sighting.activity, deque())
        limit = max(self._limits[sighting.activity], SLACK * max(recent, default=0.0))
        idle_s = now - known.idle_since
        return f"did nothing for {idle_s:.1f} s" if idle_s >= limit else ""

    def forget(self, process: int) -> None:
        """Look at this worker no longer."""
        self._known.pop(process, None)

    def _compare(self, known: _Known, sighting: Sighting, now: float) -> None:
        before, known.last, known.seen_at = known.last, sighting, now
        if sighting.since != before.since:
            recent = known.durations.setdefault(before.activity, deque(maxlen=RECENT))
            recent.append(sighting.since - before.since)
        if sighting.since != before.since or sighting.cpu_s > before.cpu_s:
            known.idle_since = now
        if not sighting.stopped:
            known.stopped_since = None
        elif known.stopped_since is None:
            known.stopped_since = now
