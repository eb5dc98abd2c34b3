"""Learning: the training loss, and the results of evaluations, as those of the compared run."""

from __future__ import annotations

from math import isfinite
from typing import Final

import numpy as np

from holdfast.record.run_record import RunRecord
from holdfast.record.units import digits
from holdfast.record.views.metric import ShownMetric, metric_of
from holdfast.record.views.pace import mean_loss
from holdfast.views.dashboard.charts import POINTS, Chart
from holdfast.views.dashboard.markup import Panel, empty, head, key, text
from holdfast.views.dashboard.theme import faded
from holdfast.views.dashboard.view import Axis, View, positions

LOSS_TITLE: Final = "Training loss"
ACCURACY_TITLE: Final = "Accuracy"
TRAINING_POINTS: Final = 120
"""Points of the training's curve: each is the mean of several steps, as one batch says little."""


def loss(view: View) -> Panel:
    """The loss of each step: the mean as a line, the least and the greatest as a band."""
    if not view.has_steps:
        return empty(LOSS_TITLE, "The curve begins with step 1.")
    curve = view.record.steps.series("loss", POINTS, view.first_row, view.drawn_rows)
    at = view.x(curve.at)
    color = view.colors.kelp_fill
    chart = Chart(view, left=34)
    chart.band(at, curve.low, curve.high, faded(color, 0.22))
    chart.line(at, curve.mean, color, "loss")
    keys = key("--kelp-fill", "this run", digits(mean_loss(view.record)))
    if view.compared is not None and len(view.compared.steps):
        other = view.compared.steps.series("loss", POINTS)
        start = view.compared.started_at or other.at[0]
        name = view.compared.path.name
        along = positions(view.compared, start, view.axis, other.at)
        chart.dashed(along, other.mean, name)
        keys += key("--cmp", text(name), digits(mean_loss(view.compared)), "dash")
    chart.add_marks()
    return Panel(head=head(LOSS_TITLE, keys=keys), figure=chart.figure())


def accuracy(view: View) -> Panel:
    """The result of each evaluation, with a point for each."""
    metric = metric_of(view.record)
    if metric is None:
        return empty(ACCURACY_TITLE, "No evaluation yet. The first one begins the curve.")
    chart = Chart(view)
    color = view.colors.kelp_fill
    scale = 100 if metric.is_share else 1
    if metric.name == "accuracy":
        _add_training(chart, metric, scale)
    along = _along(view.record, view.start, view.axis, metric)
    marker = {"size": 4.4, "color": color}
    values = _scaled(metric, scale)
    chart.line(along, values, color, metric.title, mode="lines+markers", marker=marker)
    chart.layout["yaxis"]["ticksuffix"] = " % " if metric.is_share else " "
    keys = key("--kelp-fill", "validation", metric.shown(metric.values[-1]))
    other = metric_of(view.compared) if view.compared is not None else None
    if view.compared is not None and other is not None and other.name == metric.name:
        start = view.compared.started_at or 0.0
        along = _along(view.compared, start, view.axis, other)
        name = view.compared.path.name
        chart.dashed(along, _scaled(other, scale), name)
        keys += key("--cmp", text(name), other.shown(other.values[-1]), "dash")
    chart.add_marks()
    return Panel(head=head(text(metric.title), keys=keys), figure=chart.figure())


def _add_training(chart: Chart, metric: ShownMetric, scale: float) -> None:
    """Draw the accuracy that the task logs in each step, with its newest value at its end."""
    view = chart.view
    curve = view.record.steps.series(metric.name, TRAINING_POINTS)
    at = view.x(curve.at)
    known = [each for each in curve.mean if isfinite(each)]
    if not known:
        return
    color = faded(view.colors.kelp_fill, 0.55)
    chart.line(at, [scale * each for each in curve.mean], color, "training", 1)
    chart.annotate(
        x=at[-1], y=scale * known[-1], yref="y", xanchor="right", yanchor="bottom",
        text=f"training {metric.shown(known[-1])}",
    )  # fmt: skip


def _scaled(metric: ShownMetric, scale: float) -> list[float]:
    return [scale * value for value in metric.values]


def _along(record: RunRecord, start: float, axis: Axis, metric: ShownMetric) -> list[float]:
    """Places of the evaluations on the horizontal axis: each after its step."""
    if axis == "step":
        return [float(step) for step in metric.steps]
    steps = record.steps
    if not len(steps):
        return [0.0] * len(metric.steps)
    at = np.interp(metric.steps, steps.array("step"), steps.array("at"))
    return positions(record, start, axis, at.tolist())
