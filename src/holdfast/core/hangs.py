"""Hangs: detects workers that are alive and make no progress.

Only what cannot be work counts as a hang. A worker that the kernel has stopped does nothing,
whatever its phase. One that computes uses the processor: if it uses none for much longer than the
phase ever took, it hangs. A worker that waits for others or for samples is never suspected.

A script's workers wait for each other in code that is not ours, where a waiting worker looks like
one that hangs: only if none of them uses the processor do all of them hang.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

STOPPED_S: Final = 0.8
"""Time that a process may be stopped, seconds."""
OWN_CODE_TIMEOUT_S: Final = 1.0
"""Time that our own code may take without using the processor, seconds."""
MAX_SLOWDOWN: Final = 3
"""A phase may take this many times as long as the longest of the last ones."""
NUM_RECENT_PHASES: Final = 20
IDLE_CPU_FRACTION: Final = 0.01
"""Less of a CPU than this is idle: libraries have threads that wake now and then."""
MAX_OBSERVATION_GAP_S: Final = 1.0
"""Between two observations that are further apart, the agent itself was held up."""


class PhaseKind(enum.Enum):
    """Owner of the code that a worker runs.

    HOLDFAST  ours: reducing, updating
    USER      the user's: forward and backward pass, evaluation
    WAITING   none: it waits for others, for samples or for a disk
    """

    HOLDFAST = "own"
    USER = "user"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The state of a worker at one time.

    Attributes:
        phase_kind: Owner of the code that it runs.
        since: Since when, seconds on any clock.
        cpu_s: Processor time that it has used so far, seconds.
        stopped: True if the kernel has stopped it.
    """

    phase_kind: PhaseKind
    since: float
    cpu_s: float
    stopped: bool


@dataclass(slots=True)
class _History:
    """A worker that was observed before.

    Attributes:
        last, seen_at: The last observation of it.
        idle_since, cpu_then_s: Time of its last progress, and the processor time used by then.
        durations: Durations of its last phases of each kind, seconds.
    """

    last: Observation
    seen_at: float
    idle_since: float
    cpu_then_s: float
    stopped_since: float | None = None
    durations: dict[PhaseKind, deque[float]] = field(default_factory=dict)


class HangDetector:
    """Detects workers that hang, from periodic observations.

    Args:
        user_s: Time that the user's code may take without using the processor, seconds.
        together: True if workers wait for each other in user code.
    """

    def __init__(self, user_s: float, *, together: bool = False) -> None:
        self._limits = {PhaseKind.HOLDFAST: OWN_CODE_TIMEOUT_S, PhaseKind.USER: user_s}
        self._together = together
        self._seen: dict[int, _History] = {}

    def see(self, observations: Mapping[int, Observation], now: float) -> dict[int, str]:
        """Take observations of all workers, by process; returns why some hang."""
        self._seen = {
            process: self._compare(self._seen.get(process), observation, now)
            for process, observation in observations.items()
        }
        # In a script, one that waits looks like one that hangs. While any of them works, none hangs
        # but those that the kernel has stopped.
        hangs = {p: why for p, history in self._seen.items() if (why := self._judge(history, now))}
        in_user_code = {p for p, seen in observations.items() if seen.phase_kind is PhaseKind.USER}
        if self._together and not in_user_code <= hangs.keys():
            return {process: why for process, why in hangs.items() if observations[process].stopped}
        return hangs

    def _judge(self, history: _History, now: float) -> str:
        """Reason for which a worker hangs, or nothing."""
        if history.stopped_since is not None:
            stopped_s = now - history.stopped_since
            return f"was stopped for {stopped_s:.1f} s" if stopped_s >= STOPPED_S else ""
        if history.last.phase_kind is PhaseKind.WAITING:
            return ""
        # A phase that took long before may take long again.
        recent = history.durations.get(history.last.phase_kind, deque())
        limit = max(self._limits[history.last.phase_kind], MAX_SLOWDOWN * max(recent, default=0.0))
        idle_s = now - history.idle_since
        others = ", nor did any other worker" if self._together else ""
        return f"did nothing{others} for {idle_s:.1f} s" if idle_s >= limit else ""

    @staticmethod
    def _compare(history: _History | None, observation: Observation, now: float) -> _History:
        """History of a worker with one more observation."""
        # After a gap the agent may have been stopped together with the worker: begin again.
        if history is None or now - history.seen_at > MAX_OBSERVATION_GAP_S:
            return _History(observation, now, now, observation.cpu_s)
        before = history.last
        history.last = observation
        history.seen_at = now
        if observation.since != before.since:
            recent = history.durations.setdefault(
                before.phase_kind, deque(maxlen=NUM_RECENT_PHASES)
            )
            recent.append(observation.since - before.since)
        # A new phase is progress, and so is processor time above what idle threads use.
        worked_s = observation.cpu_s - history.cpu_then_s
        if observation.since != before.since or worked_s > IDLE_CPU_FRACTION * (
            now - history.idle_since
        ):
            history.idle_since = now
            history.cpu_then_s = observation.cpu_s
        if not observation.stopped:
            history.stopped_since = None
        elif history.stopped_since is None:
            history.stopped_since = now
        return history
