"""Tables: the record of a run as tidy tables, a row for each step, worker, evaluation and so on.

Rows are read from the files when they are asked for, so a table of any length can be written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast.record import history, recovery_reports
from holdfast.record.goodput import Cause
from holdfast.record.metrics_reader import lines_of
from holdfast.record.run_record import RunRecord
from holdfast.rundir import json_lines
from holdfast.rundir.run_directory import METRICS

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TableSource:
    """One table of a run.

    Attributes:
        name: Name of the table.
        columns: Columns that it has at least, with the types of their values.
        rows: Reads all rows; a row lacks what it has no value for.
    """

    name: str
    columns: Mapping[str, type]
    rows: Callable[[], Iterator[Row]]

    def all_columns(self) -> dict[str, type]:
        """All columns, with the types of their values: bool, int, float or str. Values of other
        types, and of several, are written as JSON.
        """
        found = dict(self.columns)
        for row in self.rows():
            for name, value in row.items():
                if value is not None:
                    kind = _kind_of(value)
                    known = found.setdefault(name, kind)
                    if known is not kind:
                        found[name] = float if {known, kind} == {int, float} else str
        return found


def converted(row: Row, columns: Mapping[str, type]) -> Row:
    """A row with a value for each column, None where it has none, of the column's type."""
    return {name: _converted(row.get(name), kind) for name, kind in columns.items()}


def tables_of(record: RunRecord) -> list[TableSource]:
    """The tables of a run."""
    return [
        TableSource("steps", _STEPS, lambda: map(json_lines.step_row, _step_lines(record))),
        TableSource("workers", _WORKERS, lambda: _workers(record)),
        TableSource("evaluations", {"step": int}, lambda: _evaluations(record)),
        TableSource("events", _EVENTS, lambda: _events(record)),
        TableSource("recoveries", _RECOVERIES, lambda: _recoveries(record)),
        TableSource("checkpoints", _CHECKPOINTS, lambda: _checkpoints(record)),
    ]


_STEPS: Final = {
    "step": int, "epoch": int, "loss": float, "norm": float, "lr": float, "samples": int,
    "seconds": float, "time_unix_s": float,
}  # fmt: skip
_WORKERS: Final = {"step": int, "rank": int, "shards": int}
_EVENTS: Final = {
    "time_unix_s": float, "event": str, "step": int, "rank": int, "host": str, "text": str,
    "fields": str,
}  # fmt: skip
_RECOVERIES: Final = {
    "number": int, "time_unix_s": float, "outcome": str, "causes": str, "step": int, "ended": str,
    "halted": str, "total_s": float, "checkpoint": int, "recomputed_steps": int,
    "recomputed_samples": int,
}  # fmt: skip
_CHECKPOINTS: Final = {
    "step": int, "time_unix_s": float, "size_bytes": int, "seconds": float, "directory": str,
}  # fmt: skip


def _lines(record: RunRecord, name: str) -> Iterator[Row]:
    path = record.path / name
    return lines_of(path) if path.exists() else iter(())


def _step_lines(record: RunRecord) -> Iterator[Row]:
    """The lines of steps, each step once."""
    newest = 0
    for line in _lines(record, METRICS):
        if "loss" in line and isinstance(line.get("step"), int) and line["step"] > newest:
            newest = line["step"]
            yield line


def _workers(record: RunRecord) -> Iterator[Row]:
    for line in _step_lines(record):
        workers = line.get("workers", {})
        for place, rank in enumerate(workers.get("rank", ())):
            seconds = {
                f"{name}_s": column[place]
                for name, column in workers.items()
                if name not in ("rank", "shards")
            }
            shards = workers["shards"][place]
            yield {"step": line["step"], "rank": rank, "shards": shards, **seconds}


def _evaluations(record: RunRecord) -> Iterator[Row]:
    for each in record.evaluations:
        yield {"step": each.step, **each.results}


def _events(record: RunRecord) -> Iterator[Row]:
    for event in record.events:
        fields = {k: v for k, v in event.items() if k not in ("time_unix_s", "event")}
        named = {name: event[name] for name in ("step", "rank", "host") if name in event}
        times = {"time_unix_s": event["time_unix_s"], "event": event["event"]}
        yield {**times, **named, "text": history.words(event), "fields": json.dumps(fields)}


def _recoveries(record: RunRecord) -> Iterator[Row]:
    for report in record.recoveries:
        row = recovery_reports.plain(report)
        seconds = row.pop("seconds")
        row["causes"] = "; ".join(f"{cause.who} {cause.what}" for cause in report.causes)
        yield row | {f"{phase.replace(' ', '_')}_s": spent for phase, spent in seconds.items()}


def _checkpoints(record: RunRecord) -> Iterator[Row]:
    """A checkpoint's time is that which the step after it waited for it."""
    steps = record.steps
    pauses = dict(zip(steps.columns["step"], steps.losses[Cause.CHECKPOINT], strict=True))
    for each in record.checkpoints:
        yield {
            "step": each.step,
            "time_unix_s": each.at,
            "size_bytes": each.size_bytes,
            "seconds": pauses.get(each.step + 1),
            "directory": each.directory,
        }


def _kind_of(value: object) -> type:
    kind = type(value)
    return kind if kind in (bool, int, float) else str


def _converted(value: Any, kind: type) -> Any:
    if value is None or isinstance(value, kind):
        return value
    return float(value) if kind is float else json.dumps(value)
