"""Spool: reads what a run's files have for trackers, from a cursor, in batches.

The position in `metrics.jsonl` is a step: a restart from a checkpoint removes later steps from the
file and computes them again, with the same values. The bytes in a cursor only save reading.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from holdfast.record import recovery_reports
from holdfast.record.recovery_reports import RecoveryReport
from holdfast.rundir.json_lines import TAIL_BYTES
from holdfast.rundir.run_directory import METRICS, RECOVERIES, SYSTEM
from holdfast.sinks.trackers.tracker import Batch, Point

BATCH_BYTES: Final = 1 << 16
"""How much of each file is read for a batch, but at least a line."""

Line = dict[str, Any]


class Cursor(BaseModel):
    """What of a run's files has been read.

    Attributes:
        step, evaluation: The newest step, and the newest step with an evaluation.
        time_unix_s: The time of that step; an evaluation has none of its own.
        line: Where the last line of `metrics.jsonl` that was read begins and ends, bytes; its step.
        recoveries, system: How much of these files was read, bytes.
        samples: How many lines of `system.jsonl` that is.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    step: int = -1
    evaluation: int = -1
    time_unix_s: float = 0.0
    line: tuple[int, int, int] = (0, 0, -1)
    recoveries: int = 0
    system: int = 0
    samples: int = 0


def read(run_dir: Path, cursor: Cursor, *, has_steps: bool) -> tuple[Batch, Cursor]:
    """The next batch of a run, and the cursor after it; the same cursor if nothing is new.

    Args:
        run_dir: The run's directory.
        cursor: What has been read.
        has_steps: Whether the run writes `metrics.jsonl`; a script's file of this name is its own.

    Raises:
        OSError: A file cannot be read.
    """
    points: list[Point] = []
    if has_steps:
        cursor = _read_metrics(run_dir / METRICS, cursor, points)
    cursor = _read_system(run_dir / SYSTEM, cursor, points)
    reports, end = _read_recoveries(run_dir / RECOVERIES, cursor.recoveries)
    points += [point for report in reports for point in _of_recovery(report)]
    cursor = cursor.model_copy(update={"recoveries": end})
    return Batch(points=points, recoveries=reports), cursor


def _read_metrics(path: Path, cursor: Cursor, points: list[Point]) -> Cursor:
    if not path.exists():
        return cursor
    newest = {"step": cursor.step, "evaluation": cursor.evaluation}
    now = cursor.time_unix_s
    last = cursor.line
    with path.open("rb") as file:
        for start, end, line in _whole_lines(file, _next_line(file, cursor)):
            if line is None or not isinstance(line.get("step"), int):
                continue
            last = (start, end, line["step"])
            kind = "evaluation" if "evaluation" in line else "step"
            if line["step"] > newest[kind]:
                newest[kind] = line["step"]
                now = line.get("time_unix_s", now)
                points += _of_evaluation(line, now) if kind == "evaluation" else _of_step(line, now)
    return cursor.model_copy(update={**newest, "time_unix_s": now, "line": last})


def _next_line(file: BinaryIO, cursor: Cursor) -> int:
    """Where to read from, so that no line that is new is before."""
    start, end, step = cursor.line
    file.seek(start)
    last = _object(file.read(end - start)) or {}
    if last.get("step") == step:
        return end
    file.seek(0, os.SEEK_END)  # the line has been removed; those that are left end shortly before
    tail = max(0, file.tell() - TAIL_BYTES)
    file.seek(tail)
    tail += len(file.readline()) if tail else 0
    _, _, first = next(_whole_lines(file, tail), (0, 0, None))
    return tail if first is not None and first.get("step", cursor.step) < cursor.step else 0


def _read_system(path: Path, cursor: Cursor, points: list[Point]) -> Cursor:
    end = cursor.system
    samples = cursor.samples
    if path.exists():
        if path.stat().st_size < end:
            end = 0  # the file was replaced by a new one
        with path.open("rb") as file:
            for _, line_end, line in _whole_lines(file, end):
                end = line_end
                samples = samples + 1
                if line is not None:
                    points += _of_sample(line, samples)
    return cursor.model_copy(update={"system": end, "samples": samples})


def _read_recoveries(path: Path, start: int) -> tuple[list[RecoveryReport], int]:
    reports = []
    end = start
    if path.exists():
        with path.open("rb") as file:
            for _, line_end, line in _whole_lines(file, start):
                end = line_end
                try:
                    reports.append(recovery_reports.ADAPTER.validate_python(line))
                except ValidationError:  # torn, or of another version
                    continue
    return reports, end


def _whole_lines(file: BinaryIO, start: int) -> Iterator[tuple[int, int, Line | None]]:
    """Start, end and content of the next whole lines, for one batch; None where a crash has torn
    one.
    """
    file.seek(start)
    limit = start + BATCH_BYTES
    while start < limit:
        text = file.readline()
        if not text.endswith(b"\n"):
            return
        yield start, start + len(text), _object(text)
        start += len(text)


def _object(text: bytes) -> Line | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _of_step(line: Line, now: float) -> Iterator[Point]:
    values = {name: line.get(name) for name in ("loss", "norm", "lr", "scale", "epoch")}
    if line.get("seconds"):
        values["samples_per_s"] = line["samples"] / line["seconds"]
    yield from _points("train", values | line.get("logged", {}), line["step"], now)


def _of_evaluation(line: Line, now: float) -> Iterator[Point]:
    return _points("evaluation", line["evaluation"], line["step"], now)


def _of_recovery(report: RecoveryReport) -> Iterator[Point]:
    values = {
        "seconds": report.total_s,
        "recomputed_steps": report.recomputed_steps,
        "step": report.step,
    }
    return _points("recovery", values, report.number, report.time_unix_s)


def _of_sample(line: Line, number: int) -> Iterator[Point]:
    """The numbers in a sample of a host, with those of its GPUs."""
    host = line.get("host", "host")
    now = line.get("time_unix_s", 0.0)
    values = {name: value for name, value in line.items() if name != "time_unix_s"}
    for index, gpu in enumerate(line.get("gpus") or ()):
        if isinstance(gpu, Mapping):
            values |= {f"gpu{index}/{name}": value for name, value in gpu.items()}
    return _points(f"system/{host}", values, number, now)


def _points(group: str, values: Mapping[str, Any], step: int, now: float) -> Iterator[Point]:
    """A point for each number; lists and texts are left out, and what is not finite."""
    for name, value in values.items():
        if isinstance(value, int | float) and isfinite(value):
            yield Point(name=f"{group}/{name}", value=float(value), step=step, time_unix_s=now)
