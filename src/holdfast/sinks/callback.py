"""Callback: tells a function of the user's what happens in a run, while it happens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.record import recovery_reports
from holdfast.record.recovery_reports import RecoveryReport
from holdfast.record.sink import Sink
from holdfast.rundir import json_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """News of a run.

    Attributes:
        kind: `step`, `evaluation`, `recovery`, or the name of a line in `events.jsonl`, such as
            `checkpoint-committed`, `worker-exited` and `run-ended`.
        step: Steps committed by then; None where that is not known.
        values: Facts by name. Of a step: a row of `Result.history`. Of an
            evaluation: its results. Of a recovery: its report.
        stop: Stops the run after its current step, with a checkpoint, as Ctrl-C does.
    """

    kind: str
    step: int | None
    values: Mapping[str, Any]
    stop: Callable[[], None] = field(repr=False, compare=False)


OnEvent = Callable[[Event], object]


class Callback(Sink):
    """Calls a function with every event of a run.

    If it raises an exception, the run is stopped, and the function is not called again.

    Args:
        on_event: The function; None does nothing.
        stop: Stops the run.
    """

    def __init__(self, on_event: OnEvent | None, stop: Callable[[], None]) -> None:
        self._on_event = on_event
        self._stop = stop
        self._error: Exception | None = None

    def on_line(self, line: Mapping[str, Any]) -> None:
        """Take a line of the events or the metrics."""
        if "event" in line:
            self._call(line["event"], line.get("step"), _without(line, "event", "step"))
        elif "evaluation" in line:
            self._call("evaluation", line["step"], line["evaluation"])
        else:
            self._call("step", line["step"], _without(json_lines.step_row(line), "step"))

    def on_recovery(self, report: RecoveryReport) -> None:
        """Take the report of a recovery that is over."""
        values = recovery_reports.plain(report)
        self._call("recovery", report.step, _without(values, "step"))

    def raise_error(self) -> None:
        """Raise what the function has raised, if it has."""
        if self._error is not None:
            raise self._error

    def _call(self, kind: str, step: int | None, values: Mapping[str, Any]) -> None:
        if self._on_event is None or self._error is not None:
            return
        try:
            self._on_event(Event(kind=kind, step=step, values=values, stop=self._stop))
        except Exception as error:  # noqa: BLE001  # raised again once the run has stopped
            error.add_note(f"on_event raised this for {kind!r}, so the run was stopped")
            self._error = error
            self._stop()


def _without(line: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key not in (*keys, "time_unix_s")}
