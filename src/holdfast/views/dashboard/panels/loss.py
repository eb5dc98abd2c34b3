"""Training loss: whether the run learns, and like the compared run."""

from __future__ import annotations

from typing import Final

from holdfast.record.units import digits
from holdfast.record.views.pace import mean_loss
from holdfast.views.dashboard.charts import POINTS, Chart
from holdfast.views.dashboard.markup import Panel, empty, head, key, text
from holdfast.views.dashboard.theme import faded
from holdfast.views.dashboard.view import View, positions

TITLE: Final = "Training loss"


def panel(view: View) -> Panel:
    """The loss of each step: the mean as a line, the least and the greatest as a band."""
    if not view.has_steps:
        return empty(TITLE, "The curve begins with step 1.")
    curve = view.record.steps.series("loss", POINTS, view.first_row, view.drawn_rows)
    at = view.x(curve.at)
    color = view.colors.kelp_fill
    chart = Chart(view, left=34)
    hidden = {"color": "rgba(0,0,0,0)", "width": 0}
    chart.add(at, curve.low, mode="lines", line=hidden, hoverinfo="skip")
    chart.add(
        at, curve.high, mode="lines", line=hidden, hoverinfo="skip", fill="tonexty",
        fillcolor=faded(color, 0.22),
    )  # fmt: skip
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
    return Panel(head=head(TITLE, keys=keys), figure=chart.figure())
