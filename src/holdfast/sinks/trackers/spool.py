"""Spool: reads what a run's files have for trackers, from a cursor, in batches.

Each step counts once, although a restart from a checkpoint removes later steps from the file and
computes them again, with the same values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Any, Final

from holdfast.record.recovery_reports import RecoveryReport, reports_in
from holdfast.rundir.follow import Cursor, JsonTail, StepCursor, StepTail
from holdfast.rundir.run_directory import METRICS, RECOVERIES, SYSTEM
from holdfast.sinks.trackers.tracker import Batch, Point, TrackedJob
from holdfast.strict import Strict

BATCH_BYTES: Final = 1 << 16
"""Size of what is read of each file for a batch, but at least a line."""

Line = dict[str, Any]


class SpoolCursor(Strict):
    """The ends of what has been read of a run's files.

    Attributes:
        steps: The place in `metrics.jsonl`.
        time_unix_s: The time of the newest step; an evaluation has none of its own.
        recoveries, system: The places in these files.
        samples: Count of samples before `system`.
    """

    steps: StepCursor = StepCursor()
    time_unix_s: float = 0.0
    recoveries: Cursor = Cursor()
    system: Cursor = Cursor()
    samples: int = 0


def read(run_dir: Path, cursor: SpoolCursor, job: TrackedJob) -> tuple[Batch, SpoolCursor]:
    """The next batch of a run, and the cursor after it; the same cursor if nothing is new.

    Args:
        run_dir: The run's directory.
        cursor: End of what has been read.
        job: The run's job.

    Raises:
        OSError: A file cannot be read.
    """
    points: list[Point] = []
    cursor = _read_metrics(run_dir / METRICS, cursor, job.tokens_per_sample, points)
    cursor = _read_system(run_dir / SYSTEM, cursor, points)
    reports, cursor = _read_recoveries(run_dir / RECOVERIES, cursor)
    points += [point for report in reports for point in _of_recovery(report)]
    return Batch(points=points, recoveries=reports), cursor


def _read_metrics(
    path: Path, cursor: SpoolCursor, tokens: int | None, points: list[Point]
) -> SpoolCursor:
    tail = StepTail(path, cursor.steps)
    now = cursor.time_unix_s
    for line in tail(BATCH_BYTES):
        now = line.get("time_unix_s", now)
        is_step = "evaluation" not in line
        points += _of_step(line, tokens, now) if is_step else _of_evaluation(line, now)
    return cursor.model_copy(update={"steps": tail.cursor, "time_unix_s": now})


def _read_system(path: Path, cursor: SpoolCursor, points: list[Point]) -> SpoolCursor:
    tail = JsonTail(path, cursor.system)
    samples = cursor.samples
    for line in tail(BATCH_BYTES):
        samples += 1
        points += _of_sample(line, samples)
    return cursor.model_copy(update={"system": tail.cursor, "samples": samples})


def _read_recoveries(path: Path, cursor: SpoolCursor) -> tuple[list[RecoveryReport], SpoolCursor]:
    tail = JsonTail(path, cursor.recoveries)
    reports = list(reports_in(tail(BATCH_BYTES)))
    return reports, cursor.model_copy(update={"recoveries": tail.cursor})


def _of_step(line: Line, tokens: int | None, now: float) -> Iterator[Point]:
    values = {name: line.get(name) for name in ("loss", "norm", "lr", "scale", "epoch")}
    if line.get("seconds") and line["samples"]:
        rate = line["samples"] / line["seconds"]
        values["samples_per_s"] = rate
        values["tokens_per_s"] = rate * tokens if tokens else None
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
