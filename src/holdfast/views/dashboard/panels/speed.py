"""Speed: samples per second of a run over its time, with and without what it has lost."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import Final

import numpy as np
import numpy.typing as npt

from holdfast.record.run_record import RunRecord
from holdfast.record.views.pace import window_s

Numbers = npt.NDArray[np.float64]
POINTS: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Samples per second.

    Attributes:
        at: Moments, Unix time, seconds.
        throughput: While steps were computed; nan where there was none.
        goodput: Of committed steps, each counted once, of all time.
    """

    at: list[float]
    throughput: list[float]
    goodput: list[float]


def speed_of(record: RunRecord, start: float, end: float) -> Speed:
    """The speed of a run between two moments, each value the mean of the seconds before it."""
    steps = record.steps
    if len(steps) < 2 or end <= start:
        return Speed(at=[], throughput=[], goodput=[])
    at = np.concatenate([[start], steps.array("at")])
    taken = np.nan_to_num(steps.array("seconds"))
    samples = steps.array("samples")
    done = np.concatenate([[0.0], np.cumsum(samples)])
    timed = np.concatenate([[0.0], np.cumsum(np.where(taken > 0, samples, 0.0))])
    spent = np.concatenate([[0.0], np.cumsum(taken)])
    window = window_s(start, end)
    moments = np.linspace(at[1], end, POINTS)
    before = np.maximum(moments - window, start)

    def gain(total: Numbers) -> Numbers:
        now, then = (np.interp(each, at, total).astype(np.float64) for each in (moments, before))
        return now - then

    seconds = gain(spent)
    is_known = seconds > 0.02 * window
    throughput = np.divide(gain(timed), seconds, out=np.full(POINTS, nan), where=is_known)
    goodput = gain(done) / np.maximum(moments - before, 1e-6)
    return Speed(at=moments.tolist(), throughput=throughput.tolist(), goodput=goodput.tolist())
