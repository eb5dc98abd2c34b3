"""Pace: how fast a run goes, how long the rest takes, and how it learns, from its newest steps.

Each reads a few steps at the end of the record, however long the run is.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass
from math import isnan, nan
from typing import Final

from holdfast.record.run_record import RunRecord
from holdfast.record.units import percent
from holdfast.record.views.run_at import RunAt

WINDOWS: Final = 100
"""A speed is the mean of this part of the run's time at least."""
MIN_WINDOW_S: Final = 2.0
RECENT_S: Final = 60.0
"""Time over which the pace of the rest is measured."""
MEAN_STEPS: Final = 20
"""Number of steps whose means are the current loss, and the time of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Current speed of a run.

    Attributes:
        throughput: Samples per second while steps are computed; nan if there was none lately.
        goodput: Samples of committed steps per second of all time, each counted once.
    """

    throughput: float
    goodput: float

    @property
    def share(self) -> float:
        """The useful part of the throughput; nan if no step was computed lately."""
        return min(1.0, self.goodput / self.throughput) if self.throughput > 0 else nan


def window_s(start: float, end: float) -> float:
    """Over how many seconds the speed of a run is averaged that lasts from `start` to `end`."""
    return max(MIN_WINDOW_S, (end - start) / WINDOWS)


def pace_of(run: RunAt) -> Pace | None:
    """Current speed of a run; None before its second step, and if its samples are not known."""
    columns = run.record.steps.columns
    start = run.start
    end = run.stepped_until
    at = columns["at"]
    samples = columns["samples"]
    seconds = columns["seconds"]
    if len(at) < 2 or end <= start or not samples[-1]:
        return None
    window = window_s(start, end)
    begin = max(end - window, start)
    first = bisect_left(at, begin)
    done = timed = spent = 0.0
    for row in range(first, len(at)):
        before = at[row - 1] if row else start
        # The step that began before the window counts for the part of it that is inside.
        part = 1.0 if before >= begin else (at[row] - begin) / (at[row] - before)
        done += part * samples[row]
        if seconds[row] > 0:
            timed += part * samples[row]
            spent += part * seconds[row]
    throughput = timed / spent if spent > 0.02 * window else nan
    return Pace(throughput=throughput, goodput=done / max(end - begin, 1e-6))


def goodput_of(run: RunAt) -> tuple[float, str] | None:
    """Goodput of a run, samples per second, and its share in words: of the whole run once it has
    ended. None before its second step.
    """
    pace = pace_of(run)
    if pace is None:
        return None
    if run.has_ended:
        whole = run.record.goodput()
        return whole.samples_per_s, f"{percent(whole.share)} useful"
    share = "no step lately" if isnan(pace.share) else f"{percent(pace.share)} of throughput"
    return pace.goodput, share


def left_s(run: RunAt) -> float | None:
    """Remaining time of a run, seconds, if it is as fast as recently; None if that is not
    known.
    """
    columns = run.record.steps.columns
    total = run.record.total_steps
    at = columns["at"]
    step = columns["step"]
    if total is None or len(at) < 2:
        return None
    row = min(bisect_left(at, run.end - RECENT_S), len(at) - 2)
    steps = step[-1] - step[row]
    return float((total - step[-1]) * (at[-1] - at[row]) / steps) if steps else None


def epochs_of(record: RunRecord) -> tuple[float, int] | None:
    """Epochs that a run has done, and has in all; None if that is not known."""
    total = record.total_steps
    epochs = getattr(record.job, "epochs", 0)
    return (epochs * record.steps.newest / total, epochs) if total and epochs else None


def mean_loss(record: RunRecord, row: int | None = None) -> float:
    """The mean loss of the steps before `row`, by default of the newest; nan without any."""
    losses = record.steps.columns["loss"]
    return _mean_before(losses, len(losses) if row is None else row)


def step_s(record: RunRecord) -> float:
    """Mean time of the newest steps, seconds; nan without any."""
    seconds = record.steps.columns["seconds"]
    return _mean_before(seconds, len(seconds))


def _mean_before(values: array[float], end: int) -> float:
    known = [each for each in values[max(0, end - MEAN_STEPS) : end] if not isnan(each)]
    return sum(known) / len(known) if known else nan
