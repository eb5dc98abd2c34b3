"""Follower: tells the sinks of a run what happens in it.

It reads what the run's processes write down. None of them waits for it.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Any, Final

from holdfast.core.protocol import Stage
from holdfast.record.recovery_tracker import RecoveryTracker
from holdfast.record.sink import Sink
from holdfast.rundir import json_lines
from holdfast.rundir.follow import JsonTail, StepCursor, StepTail, end_of
from holdfast.rundir.run_directory import EVENTS, METRICS, RECOVERIES, RunPaths
from holdfast.wire.rpc import RunStateMessage

STARTING: Final = RunStateMessage(
    stage=Stage.IDLE, reason="", root_cause=None, result=None, waiting_for="the coordinator"
)
"""The state of a run before its coordinator has sent one."""


class Follower:
    """Follows one run from its start.

    Args:
        directory: The run's directory.
        sinks: Receivers.
    """

    def __init__(self, directory: RunPaths, sinks: Sequence[Sink]) -> None:
        path = directory.path
        self._sinks = sinks
        self._state = STARTING
        self._metrics = path / METRICS
        self._began_at = time.time()
        self._events = JsonTail(path / EVENTS, end_of(path / EVENTS))
        self._news = list[dict[str, Any]]()
        end = StepCursor(place=end_of(path / METRICS))  # before it are steps of earlier attempts
        self._steps = StepTail(path / METRICS, end)
        self._has_begun = False
        self._has_steps = False
        kept = json_lines.last(path / RECOVERIES)
        numbers = [each["number"] for each in kept if isinstance(each.get("number"), int)]
        waits = directory.job.records_progress
        self._tracker = RecoveryTracker(max(numbers, default=0), waits_for_steps=waits)

    @property
    def has_sinks(self) -> bool:
        """True if anything is told."""
        return bool(self._sinks)

    def poll(self, state: RunStateMessage | None = None) -> None:
        """Tell the sinks of the run's state, and of what has happened since the last call.

        Args:
            state: The newest; None where it is not known.
        """
        if not self._sinks:
            return
        self._state = state or self._state
        with suppress(OSError):  # what cannot be read now is read at the next call
            self._news += self._events()
            # The newest lines, whether they have been read before or not.
            known = []
            if self._news or self._tracker.is_open:
                known = json_lines.last(self._metrics)
            steps = self._new_steps()
            news = self._news
            self._news = []
            for line in _in_order(news, steps):
                for sink in self._sinks:
                    sink.on_line(line)
            for report in self._tracker.see(news, known):
                for sink in self._sinks:
                    sink.on_recovery(report)
        for sink in self._sinks:
            sink.on_progress(self._state)

    def _new_steps(self) -> list[dict[str, Any]]:
        """The lines of steps and evaluations since the last call."""
        for event in self._news:
            if event["event"] == "generation-started" and not self._has_steps:
                self._steps.cursor = self._steps.cursor.after(event["step"])
                self._has_begun = True
        read = self._steps() if self._has_begun else []
        # A script that goes back may leave steps of an earlier attempt to be read again.
        new = [line for line in read if line.get("time_unix_s", inf) >= self._began_at]
        self._has_steps |= bool(new)
        return new


def _in_order(events: Iterable[dict[str, Any]], steps: Iterable[dict[str, Any]]) -> Iterator[Any]:
    """Lines of both files by time; a line without one follows the line before it."""
    return (
        line for _, line in heapq.merge(_timed(events), _timed(steps), key=lambda each: each[0])
    )


def _timed(entries: Iterable[Mapping[str, Any]]) -> Iterator[tuple[float, Mapping[str, Any]]]:
    now = 0.0
    for line in entries:
        now = max(now, line.get("time_unix_s", now))
        yield now, line
