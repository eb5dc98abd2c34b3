"""Stopping: whether a run can be stopped from here, and the one request that does it."""

from __future__ import annotations

import enum

from holdfast.record import registry
from holdfast.record.run_record import RunRecord
from holdfast.record.state import ENDED


class Stop(enum.Enum):
    """Whether a run can be stopped."""

    OFFERED = enum.auto()
    REQUESTED = enum.auto()
    ELSEWHERE = enum.auto()
    """Another host runs it."""
    OVER = enum.auto()
    """It does not run."""


class Stopping:
    """Stops one run. A second signal would end it without a checkpoint, so each attempt gets one.

    Args:
        record: The run.
    """

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self._seen_at = self._requested_at = 0.0  # when the attempt began that this is known of
        self._is_here = False

    def state(self) -> Stop:
        """Whether the run can be stopped now."""
        began = self._began_at()
        if not began or self._record.state().name in ENDED:
            return Stop.OVER
        if self._requested_at == began:
            return Stop.REQUESTED
        if self._seen_at != began:  # it reads the whole log
            found = registry.find(str(self._record.path)).process()
            self._seen_at, self._is_here = began, found is not None
        return Stop.OFFERED if self._is_here else Stop.ELSEWHERE

    def request(self) -> None:
        """Ask the run to end after its current step, with a checkpoint, unless it was asked.

        Raises:
            JobError: It is not running on this host.
        """
        if self.state() is not Stop.REQUESTED:
            registry.find(str(self._record.path)).stop()
            self._requested_at = self._began_at()

    def _began_at(self) -> float:
        """When the newest attempt began; 0 if none has. Notes a request that its log has."""
        is_requested = False
        for event in reversed(self._record.events):
            is_requested |= event["event"] == "stop-requested"
            if event["event"] == "run-started":
                began = float(event["time_unix_s"])
                self._requested_at = began if is_requested else self._requested_at
                return began
        return 0.0
