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
from holdfast.record.run_record import RunRecord
from holdfast.record.views.metric import metric_of
from holdfast.record.views.pace import MEAN_STEPS

SECONDS_PER_HOUR: Final = 3600.0
RECOVERING: Final = (
    Cause.DETECTION,
    Cause.NEW_GENERATION,
    Cause.STATE_TRANSFER,
    Cause.RECOMPUTED,
)
"""Causes whose time a run without failures does not spend."""
MAX_KEYS: Final = 4
"""Keys that a note about a difference names."""
_OF_DATA: Final = ("task", "data", "params", "script")
"""Keys of a job that decide what it learns from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """Figures of one run. One that it does not have is None.

    Attributes:
        name: Its directory, as short as the others allow.
        job: Name of its job.
        state: Its state, in a word.
        workers, hosts: How many it was started with.
        batch: Samples of a step.
        steps, samples: Committed steps, and their samples.
        wall_s: Seconds from its first start to its end, or to what is newest in its record.
        samples_per_s: Samples per second of steps, but for those that a recovery interrupted.
        tokens_per_s: The same in tokens, if its data are text.
        goodput_samples_per_s: Samples of committed steps per second of `wall_s`.
        goodput: Useful part of `wall_s`.
        loss: Mean loss of its newest steps.
        loss_at_equal_samples: Mean loss up to the samples that all runs have.
        metric, metric_name: Result of its newest evaluation, and its name.
        imbalance: Share of the time of a step in which workers wait for the slowest one.
        recoveries: Number of its recoveries.
        lost_s: Seconds that recoveries took, work done again included.
        exactness, weights_sha256: As in its result.
        cost, cost_per_1000: Of all its hosts while it ran; of 1,000 samples.
    """

    name: str
    job: str | None
    state: str
    workers: int | None
    hosts: int | None
    batch: int | None
    steps: int | None
    samples: int | None
    wall_s: float
    samples_per_s: float | None
    tokens_per_s: float | None
    goodput_samples_per_s: float | None
    goodput: float | None
    loss: float | None
    loss_at_equal_samples: float | None
    metric: float | None
    metric_name: str | None
    imbalance: float | None
    recoveries: int
    lost_s: float
    exactness: str | None
    weights_sha256: str | None
    cost: float | None
    cost_per_1000: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Runs next to each other.

    Attributes:
        runs: Figures of each.
        equal_samples: Number of samples that each run with steps has at least.
        notes: What does not compare, and what is missing, in words.
    """

    runs: tuple[RunFigures, ...]
    equal_samples: int
    notes: tuple[str, ...]


def compared(records: Sequence[RunRecord], price: float | None = None) -> Comparison:
    """Compare runs.

    Args:
        records: The runs, at least one.
        price: Of a host per hour.
    """
    names = names_of([each.path for each in records])
    totals = [sum(each.steps.columns["samples"]) for each in records]
    equal = min((total for total in totals if total), default=0)
    window = MEAN_STEPS * max(map(_batch, records))  # the same for all: their losses compare
    return Comparison(
        runs=tuple(
            _figures_of(
                record,
                name,
                loss_at_equal_samples=mean_loss_at(record, equal, window),
                price=price,
            )
            for record, name in zip(records, names, strict=True)
        ),
        equal_samples=equal,
        notes=(*_differences(records, names), *_gaps(records, names)),
    )


def names_of(paths: Sequence[Path]) -> list[str]:
    """Short names of directories: their paths from the folder that all have in common."""
    common = os.path.commonpath([path.parent for path in paths])
    return [str(path.relative_to(common)) for path in paths]


def _figures_of(
    record: RunRecord,
    name: str,
    *,
    loss_at_equal_samples: float | None,
    price: float | None,
) -> RunFigures:
    job = record.job
    metric = metric_of(record)
    use = record.goodput()
    result = record.result or {}
    samples = sum(record.steps.columns["samples"])
    rate = _samples_per_s(record)
    tokens = record.tokens_per_sample
    cost = None
    if price is not None and job is not None:
        hours = (use.total_s - use.seconds[Cause.STOPPED]) / SECONDS_PER_HOUR
        cost = job.hosts * hours * price
    lost_s = sum(use.seconds[cause] for cause in RECOVERING)
    if not record.counts_steps:
        lost_s = sum(each.total_s for each in record.recoveries)
    return RunFigures(
        name=name,
        job=job.name if job is not None else None,
        state=record.state().name,
        workers=job.workers if job is not None else None,
        hosts=job.hosts if job is not None else None,
        batch=job.batch if isinstance(job, TrainJob) else None,
        steps=record.steps.newest if record.counts_steps else None,
        samples=samples if record.counts_steps else None,
        wall_s=use.total_s,
        samples_per_s=rate,
        tokens_per_s=rate * tokens if rate is not None and tokens is not None else None,
        goodput_samples_per_s=use.samples_per_s if samples else None,
        goodput=use.share if samples else None,
        loss=mean_loss_at(record, samples, MEAN_STEPS * _batch(record)),
        loss_at_equal_samples=loss_at_equal_samples,
        metric=metric.values[-1] if metric is not None else None,
        metric_name=metric.name if metric is not None else None,
        imbalance=_imbalance(record),
        recoveries=len(record.recoveries),
        lost_s=lost_s,
        exactness=result.get("exactness"),
        weights_sha256=result.get("weights_sha256"),
        cost=cost,
        cost_per_1000=1000 * cost / samples if cost is not None and samples else None,
    )


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


def _samples_per_s(record: RunRecord) -> float | None:
    columns = record.steps.columns
    interrupted = {each.step + 1 for each in record.recoveries}
    timed = [
        (samples, seconds)
        for step, samples, seconds in zip(
            columns["step"], columns["samples"], columns["seconds"], strict=True
        )
        if seconds > 0 and step not in interrupted  # an unknown time is nan
    ]
    spent = sum(seconds for _, seconds in timed)
    return sum(samples for samples, _ in timed) / spent if spent else None


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


def difference(record: RunRecord, other: RunRecord) -> list[str]:
    """The keys that decide the weights and differ from another run's, each with our value."""
    return changed_keys(_config(record), _config(other))


def _differences(records: Sequence[RunRecord], names: Sequence[str]) -> list[str]:
    """Sentences on the jobs that differ from the first."""
    first = records[0]
    notes = []
    for record, name in zip(records[1:], names[1:], strict=True):
        if record.job is None or first.job is None:
            continue
        keys = difference(record, first)
        if not keys:
            continue
        shown = ", ".join(keys[:MAX_KEYS])
        more = f" and {len(keys) - MAX_KEYS} more" if len(keys) > MAX_KEYS else ""
        losses = ""
        if any(key.split()[0].partition(".")[0] in _OF_DATA for key in keys):
            losses = "; it learns from other data, so losses do not compare"
        notes.append(f"{name} differs from {names[0]}: {shown}{more}{losses}")
    return notes


def _gaps(records: Sequence[RunRecord], names: Sequence[str]) -> list[str]:
    """Sentences on figures that runs do not have."""
    notes = []
    for record, name in zip(records, names, strict=True):
        if record.job is None:
            notes.append(f"{name}: this version cannot read its job")
        if not record.counts_steps:
            notes.append(f"{name} runs a script, whose steps and losses are not recorded")
        elif not len(record.steps):
            notes.append(f"{name} has committed no step")
    return notes
