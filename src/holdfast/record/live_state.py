"""Live state: derived from the lines of a run as they come, by sinks and by views of its record.

    events ──▶ Roster         members, standby ranks, missing workers
           ──▶ FailureWindow  the used restart budget
    steps  ──▶ RecentSteps    pace, and times of workers, in the newest steps
    state  ──▶ ProgressRate   speed on the clock, evaluations and checkpoints included

Each keeps no more than what its answer needs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.core.protocol import WorkerProgress

RECENT_STEPS: Final = 50
"""Count of the newest steps that the pace is measured in."""
RATE_WINDOW_S: Final = 30.0
"""Time over which a rate is measured: long enough to be steady, short enough to be news."""
_COUNTED: Final = ("worker-exited", "host-lost")
"""Events that the restart budget counts."""

Line = Mapping[str, Any]
"""A line of `events.jsonl` or `metrics.jsonl`."""


@dataclass(slots=True)
class Roster:
    """Workers of a run, from its events in order.

    Attributes:
        desired: Workers that the run should have.
        members: Ranks of the current generation.
        standby: Ranks that were evicted, and are ready.
    """

    desired: int = 0
    members: frozenset[int] = frozenset()
    standby: set[int] = field(default_factory=set)

    @property
    def missing(self) -> int:
        """Count of the workers that are neither members nor on standby."""
        return self.desired - len(self.members) - len(self.standby)

    def take(self, event: Line) -> None:
        """Take in an event."""
        match event:
            case {"event": "run-started", "workers": int(workers)}:
                self.desired = workers
            case {"event": "worker-evicted", "rank": int(rank)}:
                self.standby.add(rank)
            case {"event": "worker-returned", "rank": int(rank)}:
                self.standby.discard(rank)
            case {"event": "generation-started", "members": list(members)}:
                self.members = frozenset(members)
                self.standby -= self.members


class FailureWindow:
    """Times of the failures that use the restart budget, within its window.

    Args:
        window_s: Length of the window, seconds.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._times: deque[float] = deque()

    def take(self, event: Line) -> None:
        """Take in an event."""
        if event["event"] in _COUNTED and event.get("unexpected") is not False:
            self._times.append(event["time_unix_s"])

    def until(self, now: float) -> list[float]:
        """Unix times of the failures in the window that ends at `now`, in order; older ones are
        forgotten.
        """
        begin = now - self._window_s
        while self._times and self._times[0] <= begin:
            self._times.popleft()
        return [each for each in self._times if begin < each <= now]  # clocks of hosts differ


class RecentSteps:
    """The newest lines of steps.

    Attributes:
        lines: The lines, in order.
    """

    def __init__(self) -> None:
        self.lines: deque[Line] = deque(maxlen=RECENT_STEPS)

    @property
    def newest(self) -> Line:
        """The line of the newest step; empty before the first one."""
        return self.lines[-1] if self.lines else {}

    def take(self, line: Line) -> None:
        """Take in the line of a step."""
        self.lines.append(line)

    def pace(self) -> tuple[float, float] | None:
        """Steps and samples a second while steps are computed; None before the second step."""
        timed = [line for line in self.lines if line.get("seconds")]
        seconds = sum(line["seconds"] for line in timed)
        if not seconds:
            return None
        return len(timed) / seconds, sum(line["samples"] for line in timed) / seconds


class ProgressRate:
    """Speed of a run on the clock, evaluations and checkpoints included."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int]] = deque()

    def note(self, now: float, step: int, samples: int) -> None:
        """Take in the steps and samples that have been committed at `now`, seconds."""
        if self._seen and (step < self._seen[-1][1] or samples < self._seen[-1][2]):
            self._seen.clear()  # back to a checkpoint, or the worker that counted most is lost
        if not self._seen or step != self._seen[-1][1]:
            self._seen.append((now, step, samples))
        while len(self._seen) > 2 and now - self._seen[0][0] > RATE_WINDOW_S:
            self._seen.popleft()

    def __call__(self) -> tuple[float, float] | None:
        """Steps and samples a second; None until two steps have been seen."""
        if len(self._seen) < 2:
            return None
        (start, step, samples) = self._seen[0]
        (end, last_step, last_samples) = self._seen[-1]
        return (last_step - step) / (end - start), (last_samples - samples) / (end - start)


def furthest(workers: Sequence[WorkerProgress]) -> WorkerProgress | None:
    """Progress of the worker that has come furthest; None without any."""
    return max(workers, key=lambda each: each.step, default=None)
