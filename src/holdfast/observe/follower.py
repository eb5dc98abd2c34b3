"""Follower: tells the sinks of a run what happens in it.

It reads what the run's processes write down. None of them waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from holdfast.core.protocol import Stage
from holdfast.observe import lines
from holdfast.observe.lines import Tail
from holdfast.observe.recovery_tracker import RecoveryTracker
from holdfast.observe.run_dir import EVENTS, METRICS, RECOVERIES, RunDirectory
from holdfast.observe.sinks.sink import Sink
from holdfast.wire.rpc import RunStateMessage

STARTING: Final = RunStateMessage(
    stage=Stage.IDLE, reason="", root_cause=None, result=None, waiting_for="the coordinator"
)
"""The state of a run before its coordinator has sent one."""


class Follower:
    """Follows one run from its start.

    Args:
        directory: The run's directory.
        sinks: What is told.
    """

    def __init__(self, directory: RunDirectory, sinks: Sequence[Sink]) -> None:
        path, counts_steps = directory.path, directory.job.records_progress
        self._sinks, self._state = sinks, STARTING
        self._metrics = path / METRICS if counts_steps else None
        self._events, self._news = Tail(path / EVENTS), list[dict[str, Any]]()
        kept = lines.last(path / RECOVERIES)
        numbers = [each["number"] for each in kept if isinstance(each.get("number"), int)]
        self._tracker = RecoveryTracker(max(numbers, default=0), counts_steps=counts_steps)

    @property
    def has_sinks(self) -> bool:
        """Whether anything is told."""
        return bool(self._sinks)

    def poll(self, state: RunStateMessage | None = None) -> None:
        """Tell the sinks of the run's state, and of recoveries that are over since the last call.

        Args:
            state: The newest; None where it is not known.
        """
        if not self._sinks:
            return
        self._state = state or self._state
        with suppress(OSError):  # what cannot be read now is read at the next call
            self._track_recoveries()
        for sink in self._sinks:
            sink.on_progress(self._state)

    def _track_recoveries(self) -> None:
        self._news += self._events()
        if not (self._news or self._tracker.is_open):
            return
        steps = lines.last(self._metrics) if self._metrics is not None else []
        news, self._news = self._news, []
        for report in self._tracker.see(news, steps):
            for sink in self._sinks:
                sink.on_recovery(report)
