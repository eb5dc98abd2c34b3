"""Throughput: samples per second of a run over its time, and how much of them is useful."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan, nan
from typing import Final

import numpy as np
import numpy.typing as npt

from holdfast.record.run_record import RunRecord
from holdfast.record.units import MISSING, digits
from holdfast.record.views.pace import window_s
from holdfast.views.dashboard.charts import Chart
from holdfast.views.dashboard.markup import Panel, empty, head, key
from holdfast.views.dashboard.theme import faded
from holdfast.views.dashboard.view import View

Numbers = npt.NDArray[np.float64]
POINTS: Final = 300
TITLE: Final = "Goodput"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedCurve:
    """Samples per second.

    Attributes:
        at: Moments, Unix time, seconds.
        throughput: Rate while steps were computed; nan where there was none.
        goodput: Rate of committed steps, each counted once, of all time.
    """

    at: list[float]
    throughput: list[float]
    goodput: list[float]


def speed_of(record: RunRecord, start: float, end: float) -> SpeedCurve:
    """The speed of a run between two moments, each value the mean of the seconds before it."""
    steps = record.steps
    if len(steps) < 2 or end <= start:
        return SpeedCurve(at=[], throughput=[], goodput=[])
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
    return SpeedCurve(at=moments.tolist(), throughput=throughput.tolist(), goodput=goodput.tolist())


def panel(view: View) -> Panel:
    """Samples per second: while steps are computed, and of all time."""
    now = speed_of(view.record, view.start, view.stepped_until)
    if not now.at:
        return empty(TITLE, "Measured from step 2 on.")
    until = max(view.drawn_until, view.record.steps.columns["at"][0])
    found = speed_of(view.record, view.start, min(view.stepped_until, until))
    chart = Chart(view)
    colors = view.colors
    at = view.x(found.at)
    fill = faded(colors.kelp_fill, 0.13)
    chart.line(at, found.goodput, colors.kelp_fill, "goodput", fill="tozeroy", fillcolor=fill)
    chart.line(at, found.throughput, colors.ink2, "throughput", 1.25)
    chart.add_marks()
    known = [each for each in now.throughput if not isnan(each)]
    keys = key("--ink2", "throughput", _rate(known[-1] if known else None))
    keys += key("--kelp-fill", "goodput", _rate(now.goodput[-1]))
    return Panel(head=head(TITLE, keys=keys), figure=chart.figure())


def _rate(value: float | None) -> str:
    return MISSING if value is None else f"{digits(value)}/s"
