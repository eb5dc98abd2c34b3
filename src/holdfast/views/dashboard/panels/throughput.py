"""Goodput: how much of the throughput is useful."""

from __future__ import annotations

from math import isnan

from holdfast.record.units import MISSING, digits
from holdfast.views.dashboard.charts import Chart
from holdfast.views.dashboard.markup import Panel, empty, head, key
from holdfast.views.dashboard.panels.speed import speed_of
from holdfast.views.dashboard.theme import faded
from holdfast.views.dashboard.view import View

TITLE = "Goodput"


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
