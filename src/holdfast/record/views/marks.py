"""Marks: the failures of a run, and the hosts that joined it, each with its place in the run."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from holdfast.record.recovery_reports import RecoveryReport
from holdfast.record.run_record import Event, RunRecord


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
