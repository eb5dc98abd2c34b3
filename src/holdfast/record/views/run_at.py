"""RunAt: a run at a moment: what every view derives from its record and the time.

Among that are its failures, and the hosts that joined it, each with its place in the run.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from holdfast.record import breakdown
from holdfast.record.recovery_reports import RecoveryReport
from holdfast.record.run_record import Event, RunRecord
from holdfast.record.state import ENDED, RunState

WORKER_STEPS: Final = 64
"""Most steps whose mean the times of workers are."""


@dataclass(frozen=True, kw_only=True)
class RunAt:
    """A run at a moment.

    Args:
        record: The run.
        now: Unix time, seconds.
    """

    record: RunRecord
    now: float

    @cached_property
    def state(self) -> RunState:
        """State of the run."""
        return self.record.state(self.now)

    @property
    def has_ended(self) -> bool:
        """True if the run is over."""
        return self.state.name in ENDED

    @property
    def has_steps(self) -> bool:
        """True if a step is committed."""
        return len(self.record.steps) > 0

    @cached_property
    def start(self) -> float:
        """Begin of the run, Unix time, seconds."""
        begun = self.record.started_at
        if begun is not None:
            return begun
        return float(self.record.steps.columns["at"][0]) if self.has_steps else self.now

    @cached_property
    def end(self) -> float:
        """End of the run, or now."""
        if not self.has_ended:
            return max(self.now, self.start)
        newest = [event["time_unix_s"] for event in self.record.events[-1:]]
        newest += self.record.steps.columns["at"][-1:]
        return float(max(newest, default=self.start))

    @property
    def stepped_until(self) -> float:
        """Until when there is a speed: that of a run that has ended is not 0."""
        at = self.record.steps.columns["at"]
        return float(at[-1]) if at and self.has_ended else self.end

    @property
    def elapsed_s(self) -> float:
        """Time since its begin, seconds."""
        return self.end - self.start

    @cached_property
    def worker_times(self) -> list[dict[str, float]]:
        """The mean times of each worker in the newest steps; see `breakdown.rows`."""
        return self.record.workers(WORKER_STEPS)

    @cached_property
    def marks(self) -> list[FailureMark]:
        """The failures, oldest first."""
        return marks_of(self.record, self.end)

    def step_parts(self) -> dict[str, float]:
        """The share of each part in the newest steps; see `breakdown.shares_of_step`."""
        seconds = self.record.steps.columns["seconds"][-WORKER_STEPS:]
        return breakdown.shares_of_step(self.worker_times, seconds)


@dataclass(frozen=True, slots=True)
class FailureMark:
    """A failure on the horizontal axis.

    Attributes:
        name: Its number; `!` for one that the run has not recovered from.
        begin, end: From the failure to the first step after it, Unix time, seconds.
        step: The steps committed before.
        report: Report of its recovery.
    """

    name: str
    begin: float
    end: float
    step: int
    report: RecoveryReport | None


def marks_of(record: RunRecord, end: float) -> list[FailureMark]:
    """The failures of a run, oldest first.

    Args:
        record: The run.
        end: Until when one lasts that the run has not recovered from, Unix time, seconds.
    """
    marks = [
        FailureMark(
            str(each.number), each.time_unix_s - each.total_s, each.time_unix_s, each.step, each
        )
        for each in record.recoveries
    ]
    failure = record.open_failure
    if failure is not None:
        marks.append(
            FailureMark("!", float(failure["time_unix_s"]), end, record.steps.newest, None)
        )
    return marks


def joined_hosts(record: RunRecord) -> list[Event]:
    """The events of hosts that joined a run that had workers already."""
    found: list[Event] = []
    has_begun = False
    for event in record.events:
        has_begun |= event["event"] == "generation-started"
        if has_begun and event["event"] == "host-joined":
            found.append(event)
    return found


def step_at(record: RunRecord, at: float) -> int:
    """Steps that were committed at a moment, Unix time, seconds."""
    columns = record.steps.columns
    row = bisect_right(columns["at"], at)
    return int(columns["step"][row - 1]) if row else 0
