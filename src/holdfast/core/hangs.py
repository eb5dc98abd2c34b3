"""Hangs: when a worker that is alive no longer gets on.

Only what cannot be work counts. A worker that the kernel holds stopped does nothing, whatever it
was at. One that computes uses the processor, so if it does not, for much longer than it ever took,
it is stuck. Who waits for others or for samples is never suspected.

A script's workers wait for each other in code that is not ours, so there they cannot be told from
one that is stuck: only where none of them does anything, all are.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

STOPPED_S: Final = 0.8
"""How long a process may be stopped, seconds."""
OWN_S: Final = 1.0
"""How long our own code may go without using the processor, seconds."""
SLACK: Final = 3
"""And how much longer than the longest of the last times."""
RECENT: Final = 20
IDLE_CPU_FRACTION: Final = 0.01
"""How much of a processor is nothing: libraries have threads that wake now and then."""
GAP_S: Final = 1.0
"""Between two looks that are further apart, whoever looks was held up himself."""


class PhaseKind(enum.Enum):
    """What a worker is at.

    OWN      our code: reducing, updating
    USER     the user's: forward and backward pass, evaluation
    WAITING  for others, for samples, for a disk
    """

    HOLDFAST = "own"
    USER = "user"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A look at a worker.

    Attributes:
        activity: What it is at.
        since: Since when, seconds on any clock.
        cpu_s: Processor time that it has used so far, seconds.
        stopped: Whether the kernel holds it stopped.
    """

    phase_kind: PhaseKind
    since: float
    cpu_s: float
    stopped: bool


@dataclass(slots=True)
class _Known:
    """A worker that has been seen before.

    Attributes:
        last, seen_at: The last look at it.
        idle_since, cpu_then_s: When it last got on, and the processor time that it had used then.
        durations: How long it was lately at what, seconds.
    """

    last: Observation
    seen_at: float
    idle_since: float
    cpu_then_s: float
    stopped_since: float | None = None
    durations: dict[PhaseKind, deque[float]] = field(default_factory=dict)


class HangDetector:
    """Looks at workers again and again.

    Args:
        user_s: How long the user's code may go without using the processor, seconds.
        together: Whether workers wait for each other in the user's code.
    """

    def __init__(self, user_s: float, *, together: bool = False) -> None:
        self._limits = {PhaseKind.HOLDFAST: OWN_S, PhaseKind.USER: user_s}
        self._together = together
        self._known: dict[int, _Known] = {}

    def see(self, sightings: Mapping[int, Observation], now: float) -> dict[int, str]:
        """Take a look at all workers, by process; returns why some are held to hang."""
        self._known = {
            process: self._compare(self._known.get(process), sighting, now)
            for process, sighting in sightings.items()
        }
        found = {p: why for p, known in self._known.items() if (why := self._judge(known, now))}
        in_user_code = {p for p, seen in sightings.items() if seen.phase_kind is PhaseKind.USER}
        if self._together and not in_user_code <= found.keys():
            return {process: why for process, why in found.items() if sightings[process].stopped}
        return found

    def _judge(self, known: _Known, now: float) -> str:
        """Why a worker is held to hang, or nothing."""
        if known.stopped_since is not None:
            stopped_s = now - known.stopped_since
            return f"was stopped for {stopped_s:.1f} s" if stopped_s >= STOPPED_S else ""
        if known.last.phase_kind is PhaseKind.WAITING:
            return ""
        recent = known.durations.get(known.last.phase_kind, deque())
        limit = max(self._limits[known.last.phase_kind], SLACK * max(recent, default=0.0))
        idle_s = now - known.idle_since
        others = ", nor did any other worker" if self._together else ""
        return f"did nothing{others} for {idle_s:.1f} s" if idle_s >= limit else ""

    @staticmethod
    def _compare(known: _Known | None, sighting: Observation, now: float) -> _Known:
        """What is known of a worker with one more look at it."""
        if known is None or now - known.seen_at > GAP_S:
            return _Known(sighting, now, now, sighting.cpu_s)
        before, known.last, known.seen_at = known.last, sighting, now
        if sighting.since != before.since:
            recent = known.durations.setdefault(before.phase_kind, deque(maxlen=RECENT))
            recent.append(sighting.since - before.since)
        worked_s = sighting.cpu_s - known.cpu_then_s
        if sighting.since != before.since or worked_s > IDLE_CPU_FRACTION * (
            now - known.idle_since
        ):
            known.idle_since, known.cpu_then_s = now, sighting.cpu_s
        if not sighting.stopped:
            known.stopped_since = None
        elif known.stopped_since is None:
            known.stopped_since = now
        return known
