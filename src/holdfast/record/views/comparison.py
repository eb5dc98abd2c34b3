"""Comparison: runs next to each other, the same figures of each, whether it has ended or not."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isnan
from pathlib import Path
from typing import Any, Final

from holdfast.job.train_job import TrainJob
from holdfast.record.breakdown import busy_of
from holdfast.record.goodput import Cause
from holdfast.record.run_record import Goodput, RunRecord
from holdfast.record.views.metric import metric_of
from holdfast.record.views.pace import MEAN_STEPS

Row = dict[str, Any]

METRIC: Final = "evaluation."
"""Begin of the name of a result of evaluations."""
SECONDS_PER_HOUR: Final = 3600.0
RECOVERING: Final = (
    Cause.DETECTION,
    Cause.NEW_GENERATION,
    Cause.STATE_TRANSFER,
    Cause.RECOMPUTED,
)
"""Causes whose time a run without failures does not spend."""
MAX_KEYS: Final = 3
"""Keys that a note about a difference names."""
_MAY_BE_OF_DATA: Final = ("task", "params", "script")
"""Keys of a job that, besides `data`, may decide what it learns from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Runs next to each other.

    Attributes:
        runs: A row for each, with the same columns; what a run does not have is None.
        equal_samples: Number of samples that each run with steps has at least.
        notes: Facts that do not compare or are missing, in words.
    """

    runs: list[Row]
    equal_samples: int
    notes: list[str]


def compared(records: Sequence[RunRecord], price: float | None = None) -> Comparison:
    """Compare runs.

    Args:
        records: The runs, at least one.
        price: Price of a host per hour.
    """
    names = names_of([each.path for each in records])
    totals = [sum(each.steps.columns["samples"]) for each in records]
    equal = min((total for total in totals if total), default=0)
    window = MEAN_STEPS * max(map(_batch, records))  # the same for all: their losses compare
    rows = [
        _row(record, name, price) | {"loss_at_equal_samples": mean_loss_at(record, equal, window)}
        for record, name in zip(records, names, strict=True)
    ]
    columns = {name: None for row in rows for name in row}
    return Comparison(
        runs=[columns | row for row in rows],
        equal_samples=equal,
        notes=[*_differences(records, names), *_gaps(records, names)],
    )


def names_of(paths: Sequence[Path]) -> list[str]:
    """Short names of directories: their paths from the folder that all have in common."""
    common = os.path.commonpath([path.parent for path in paths])
    return [str(path.relative_to(common)) for path in paths]


def _row(record: RunRecord, name: str, price: float | None) -> Row:
    """Figures of a run; their names are those of `holdfast compare --json`."""
    job = record.job
    use = _without_pauses(record.goodput())
    samples = sum(record.steps.columns["samples"])
    row: Row = {"name": name, "state": record.state().name, "wall_s": use.total_s}
    if job is not None:
        row |= {"job": job.name, "workers": job.workers, "hosts": job.hosts}
    if isinstance(job, TrainJob):
        row["batch"] = job.batch
    lost_s = sum(each.total_s for each in record.recoveries)
    if record.counts_steps:
        row |= {"steps": record.steps.newest, "samples": samples}
        lost_s = sum(use.seconds[cause] for cause in RECOVERING)
    if samples:
        row |= _speed(record, use)
        row["loss"] = mean_loss_at(record, samples, MEAN_STEPS * _batch(record))
    if (metric := metric_of(record)) is not None:
        row[f"{METRIC}{metric.name}"] = metric.values[-1]
    row |= {"recoveries": len(record.recoveries), "lost_s": lost_s}
    result = record.result or {}
    row |= {key: result.get(key) for key in ("exactness", "weights_sha256")}
    if price is not None and job is not None:
        cost = job.hosts * use.total_s / SECONDS_PER_HOUR * price
        row |= {"cost": cost, "cost_per_1000": 1000 * cost / samples if samples else None}
    return row


def _without_pauses(use: Goodput) -> Goodput:
    """The use of the time between the start and the end of each attempt."""
    running_s = use.total_s - use.seconds[Cause.STOPPED]
    share = running_s / use.total_s if running_s > 0 else 1.0
    return Goodput(
        seconds={**use.seconds, Cause.STOPPED: 0.0},
        total_s=running_s,
        samples_per_s=use.samples_per_s / share,
    )


def _speed(record: RunRecord, use: Goodput) -> Row:
    """Speed of a run with steps; those that a recovery interrupted do not count."""
    columns = record.steps.columns
    interrupted = {each.step + 1 for each in record.recoveries}
    timed = [
        (samples, seconds)
        for step, samples, seconds in zip(
            columns["step"], columns["samples"], columns["seconds"], strict=True
        )
        if seconds > 0 and step not in interrupted  # an unknown time is nan
    ]
    spent_s = sum(seconds for _, seconds in timed)
    rate = sum(samples for samples, _ in timed) / spent_s if spent_s else None
    tokens = record.tokens_per_sample
    return {
        "samples_per_s": rate,
        "tokens_per_s": rate * tokens if rate and tokens else None,
        "goodput_samples_per_s": use.samples_per_s,
        "goodput": use.share,
        "imbalance": _imbalance(record),
    }


def mean_loss_at(record: RunRecord, samples: int, window: int) -> float | None:
    """Mean loss of the steps within the last `window` of the first `samples` samples of a run;
    None without any.
    """
    columns = record.steps.columns
    totals = list(accumulate(columns["samples"]))
    first = bisect_right(totals, samples - window)
    losses = columns["loss"][first : bisect_right(totals, samples)]
    known = [each for each in losses if not isnan(each)]
    return sum(known) / len(known) if known else None


def _batch(record: RunRecord) -> int:
    """Samples of a whole step."""
    return max(record.steps.columns["samples"], default=0)


def _imbalance(record: RunRecord) -> float | None:
    """Share of time that workers wait for the slowest of a step, the mean of all known steps."""
    busy = [each for _, workers in record.steps.workers if (each := busy_of(workers))]
    slowest_s = sum(map(max, busy))
    means_s = sum(sum(each) / len(each) for each in busy)
    return 1 - means_s / slowest_s if slowest_s else None


def _config(record: RunRecord) -> Mapping[str, Any]:
    """The keys of a job that decide its weights; its name does not."""
    whole = record.job.weights_config() if record.job is not None else {}
    return {key: value for key, value in whole.items() if key != "name"}


def changed_keys(ours: Mapping[str, Any], theirs: Mapping[str, Any], before: str = "") -> list[str]:
    """The keys of jobs whose values differ, each with our value."""
    found = []
    for key in sorted({*ours, *theirs}):
        mine = ours.get(key)
        other = theirs.get(key)
        if mine == other:
            continue
        if isinstance(mine, Mapping) and isinstance(other, Mapping):
            if mine.get("name") != other.get("name"):  # the rest belongs to another kind
                mine = {"name": mine.get("name")}
                other = {}
            found += changed_keys(mine, other, f"{before}{key}.")
        else:
            found.append(f"{before}{key} {mine}")
    return found


def difference(record: RunRecord, other: RunRecord) -> str:
    """The keys that decide the weights and differ from another run's, each with our value; empty
    if there is none.
    """
    keys = changed_keys(_config(record), _config(other))
    more = f" and {len(keys) - MAX_KEYS} more" if len(keys) > MAX_KEYS else ""
    return f"{', '.join(keys[:MAX_KEYS])}{more}"


def _differences(records: Sequence[RunRecord], names: Sequence[str]) -> list[str]:
    """Sentences on the jobs that differ from the first."""
    first = records[0]
    notes = []
    for record, name in zip(records[1:], names[1:], strict=True):
        keys = difference(record, first)
        if keys and type(record.job) is type(first.job):
            ours = _config(record)
            theirs = _config(first)
            losses = ""
            if any(ours.get(key) != theirs.get(key) for key in _MAY_BE_OF_DATA):
                losses = "; losses compare only if both learn from the same data"
            if ours.get("data") != theirs.get("data"):
                losses = "; it learns from other data, so losses do not compare"
            notes.append(f"{name} differs from {names[0]}: {keys}{losses}")
    return notes


def _gaps(records: Sequence[RunRecord], names: Sequence[str]) -> list[str]:
    """Sentences on figures that runs do not have."""
    notes = []
    for record, name in zip(records, names, strict=True):
        if record.job is None:
            notes.append(f"{name}: this version cannot read its job")
        if not record.counts_steps:
            notes.append(f"{name} runs a script that has made no step")
        elif not len(record.steps):
            notes.append(f"{name} has committed no step")
    return notes
