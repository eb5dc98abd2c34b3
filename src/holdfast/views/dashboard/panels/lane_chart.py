"""Lane chart: the lanes below each other, by host, with the checkpoints and the failures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import plotly.graph_objects as go

from holdfast.record.units import duration
from holdfast.views.dashboard.charts import Chart, merged
from holdfast.views.dashboard.panels.lanes import Lane
from holdfast.views.dashboard.theme import faded
from holdfast.views.dashboard.view import View

_LANE: Final = 26
"""The height of a lane, pixels."""
_GAP: Final = 0.35
"""Between two hosts, in lanes."""
_LEFT: Final = 84
_HOST: Final = 44
"""Widths left of the lanes, pixels: without hosts, and for their names."""
_MAX_NAME: Final = 10
_NEAR: Final = 0.01
"""A worker that is back within this share of the axis has no mark of its own."""
_TAG: Final = 0.026
"""The share of the axis that the tag of a failure takes: the chart is twice as wide as others."""
_WIDE: Final = 0.22
"""The share of the axis that the label of a failure needs."""


def figure_of(view: View, lanes: Sequence[Lane]) -> go.Figure:
    """The chart of these lanes."""
    colors = view.colors
    places = _places(lanes)
    saved_at = places[-1] + 1 + _GAP
    has_hosts = any(lane.host for lane in lanes)
    height = round(24 + _LANE * (saved_at + 1.2) + 20)
    chart = Chart(view, height=height, left=_LEFT + _HOST * has_hosts, tag=_TAG)
    chart.layout |= {"hovermode": "closest", "margin": {**chart.layout["margin"], "t": 24}}
    chart.layout["yaxis"] |= {
        "range": [saved_at + 0.6, -0.6], "tickvals": [*places, saved_at],
        "ticktext": [f"{name}  " for name in [*(lane.name for lane in lanes), "checkpoints"]],
        "ticksuffix": "", "showgrid": False, "tickfont": {"color": colors.ink2},
    }  # fmt: skip
    for place, lane in zip(places, lanes, strict=True):
        _add_lane(chart, place, lane)
    if has_hosts:
        _add_hosts(chart, places, lanes)
    saved = view.record.checkpoints
    chart.add(
        view.x([each.at for each in saved]), [saved_at] * len(saved), mode="markers",
        marker={"symbol": "diamond", "size": 8, "color": colors.ink3},
        hovertemplate="%{text}<extra></extra>",
        text=[f"checkpoint of step {each.step:,}" for each in saved],
    )  # fmt: skip
    chart.add_marks()
    _add_labels(chart)
    return chart.figure()


def _places(lanes: Sequence[Lane]) -> list[float]:
    """Places of the lanes, from the top: a host is apart from the one before."""
    found: list[float] = []
    for number, lane in enumerate(lanes):
        is_apart = number > 0 and lane.host != lanes[number - 1].host
        found.append(found[-1] + 1 + _GAP * is_apart if found else 0.0)
    return found


def _add_hosts(chart: Chart, places: Sequence[float], lanes: Sequence[Lane]) -> None:
    """Write the name of each host left of its lanes."""
    by_host: dict[str, list[float]] = {}
    for place, lane in zip(places, lanes, strict=True):
        by_host.setdefault(lane.host, []).append(place)
    for host, its in by_host.items():
        name = host if len(host) <= _MAX_NAME else f"{host[: _MAX_NAME - 1]}…"
        chart.annotate(
            x=0, xref="paper", xanchor="left", xshift=-(_LEFT + _HOST), y=sum(its) / len(its),
            yref="y", text=f"<b>{name}</b>", borderpad=0,
            font={"size": 12, "color": chart.view.colors.ink},
        )  # fmt: skip


def _add_lane(chart: Chart, place: float, lane: Lane) -> None:
    """Draw when the workers of a lane were there, when they were not, and where they failed."""
    view = chart.view
    colors = chart.view.colors
    look = {"fillcolor": faded(view.fleet.color(lane.rank), 0.8), "line": {"width": 0}}
    for begin, end in lane.spans:
        x0, x1 = view.x([begin, end])
        span = {"x0": x0, "x1": x1, "y0": place - 0.2, "y1": place + 0.2}
        chart.shapes.append({"type": "rect", "layer": "below", **span, **look})
    far = [gap for gap in lane.gaps if gap[1] - gap[0] > _NEAR * view.elapsed_s]
    for begin, end in far:
        x0, x1 = view.x([begin, end])
        line = {"color": colors.red, "width": 1, "dash": "2px,3px"}
        span = {"x0": x0, "x1": x1, "y0": place, "y1": place}
        chart.shapes.append({"type": "line", "layer": "below", **span, "line": line})
    for at, size, color, label in (
        ([end for _, end in far], 8, colors.ink2, "joined"),
        (lane.failed, 16, colors.red, "failed"),
    ):
        chart.add(
            view.x(at), [place] * len(at), mode="markers",
            marker={
                "symbol": "circle", "size": size, "color": colors.panel,
                "line": {"color": color, "width": 1.5 if size == 8 else 1},
            },
            hovertemplate=f"{lane.name} {label}<extra></extra>",
        )  # fmt: skip
    chart.add(
        view.x(lane.failed), [place] * len(lane.failed), mode="markers", hoverinfo="skip",
        marker={"symbol": "x-thin", "size": 6, "line": {"color": colors.red, "width": 1.75}},
    )  # fmt: skip


def _add_labels(chart: Chart) -> None:
    """Say next to each tag in which step it was, unless there are many."""
    view = chart.view
    groups = merged(view, _TAG)
    low, high = view.x_range
    begins = view.x([group[0].begin for _, group in groups])
    for place, (_, group) in enumerate(groups):
        after = begins[place + 1] if place + 1 < len(begins) else high
        if not low <= begins[place] or after - begins[place] < _WIDE * (high - low):
            continue
        if len(group) > 1:
            continue
        mark = group[0]
        cost = f" · {duration(mark.report.total_s)}" if mark.report else ""
        chart.annotate(
            x=begins[place], y=1, xanchor="left", yanchor="bottom", xshift=10,
            text=f"step {mark.step:,}{cost}",
            font={"size": 12, "color": view.colors.ink2},
        )  # fmt: skip
