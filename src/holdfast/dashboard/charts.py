"""Charts: what all curves share: the page-wide axis, the grid, the marks of failures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import plotly.graph_objects as go

from holdfast.dashboard.theme import FONT, faded
from holdfast.dashboard.view import Mark, View

HEIGHT: Final = 208
POINTS: Final = 600
"""Of a curve: more than its pixels."""
_MAX_MARKS: Final = 20
_NEAR: Final = 0.04
"""Failures nearer than this share of the axis have one tag, if there are many."""
_TICKS_S: Final = (
    1,
    2,
    5,
    10,
    20,
    30,
    60,
    120,
    300,
    600,
    1200,
    1800,
    3600,
    7200,
    14400,
    43200,
    86400,
)
_MAX_TICKS: Final = 8


def chart(view: View, *, height: int = HEIGHT, left: int = 42, right: int = 4) -> go.Figure:
    """An empty chart of a run."""
    colors = view.colors
    tick_at, (first, *others) = ticks(view)
    figure = go.Figure()
    figure.update_layout(
        height=height,
        margin={"l": left, "r": right, "t": 20, "b": 20, "pad": 0},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        showlegend=False,
        hovermode="x unified",
        dragmode=False,
        uirevision="kept",
        font={"family": FONT, "size": 12, "color": colors.ink3},
        hoverlabel={
            "bgcolor": colors.inset, "bordercolor": colors.line,
            "font": {"family": FONT, "size": 12, "color": colors.ink},
        },
    )  # fmt: skip
    figure.update_xaxes(
        range=list(view.x_range), tickvals=tick_at, ticktext=["", *others], showgrid=False,
        zeroline=False, showline=False, fixedrange=True, hoverformat=",.4~g",
    )  # fmt: skip
    figure.update_yaxes(
        gridcolor=colors.grid, zeroline=False, showline=False, rangemode="tozero", nticks=6,
        fixedrange=True, ticksuffix=" ", separatethousands=True,
    )  # fmt: skip
    if tick_at:
        figure.add_annotation(
            x=tick_at[0], y=0, yref="paper", xanchor="left", yanchor="top", text=first,
            showarrow=False, borderpad=0, yshift=-1, font={"size": 12},
        )  # fmt: skip
    return figure


def ticks(view: View) -> tuple[list[float], list[str]]:
    """Where the horizontal axis has ticks, and what they say."""
    low, high = view.x_range
    if view.axis == "step":
        step = nice((high - low) / 5)
        at = _multiples(low, high, step)
        return at, [f"{each:,.0f}" for each in at]
    every = next((each for each in _TICKS_S if (high - low) / each <= _MAX_TICKS), _TICKS_S[-1])
    at = _multiples(low, high, every)
    scale, unit = (1, "s") if every < 60 else (60, "min") if every < 3600 else (3600, "h")
    return at, [
        f"{each / scale:g}" + (f" {unit}" if place == 0 else "") for place, each in enumerate(at)
    ]


def nice(least: float) -> float:
    """The least of 1, 2, 5, 10, … that is as large."""
    ten = 1
    while True:
        for factor in (1, 2, 5):
            if ten * factor >= least:
                return ten * factor
        ten *= 10


def _multiples(low: float, high: float, step: float) -> list[float]:
    first = -(-low // step)
    count = int(max(0, (high - low) // step)) + 1
    return [step * (first + place) for place in range(count) if step * (first + place) <= high]


def merged(view: View) -> list[tuple[str, list[Mark]]]:
    """The marks by tag: each its own, neighbors together once there are too many."""
    low, high = view.x_range
    near = _NEAR * (high - low) if len(view.marks) > _MAX_MARKS else 0.0
    groups: list[list[Mark]] = []
    last = float("-inf")
    for mark in view.marks:
        (at,) = view.x([mark.begin])
        if groups and at - last < near:
            groups[-1].append(mark)
        else:
            groups.append([mark])
            last = at
    return [
        (group[0].name if len(group) == 1 else f"{group[0].name}–{group[-1].name}", group)
        for group in groups
    ]


def add_marks(view: View, figure: go.Figure, *, with_tags: bool = True) -> None:
    """Draw the failures: a line, a tint while the run recovers, a numbered tag."""
    colors = view.colors
    low, high = view.x_range
    shapes, tags = [], []
    for name, group in merged(view):
        begin, end = view.x([group[0].begin, group[-1].end])
        if not low <= begin <= high:
            continue
        line = {"color": faded(colors.red, 0.75), "width": 1}
        shapes += [
            {"type": "rect", "x0": begin, "x1": end, "y0": 0, "y1": 1, "yref": "paper",
             "fillcolor": faded(colors.red, 0.1), "line": {"width": 0}, "layer": "below"},
            {"type": "line", "x0": begin, "x1": begin, "y0": 0, "y1": 1, "yref": "paper",
             "line": line},
        ]  # fmt: skip
        if with_tags:
            tags.append(tag(view, begin, name))
    figure.update_layout(shapes=[*figure.layout.shapes, *shapes])
    figure.update_layout(annotations=[*figure.layout.annotations, *tags])


def tag(view: View, x: float, name: str) -> dict[str, Any]:
    """The number of a failure, in a red square above the chart."""
    return {
        "x": x, "y": 1, "yref": "paper", "yanchor": "bottom", "yshift": 1, "showarrow": False,
        "text": f"<b>{name}</b>", "bgcolor": view.colors.red, "borderpad": 1,
        "font": {"size": 11, "color": view.colors.panel, "family": FONT},
        "width": max(13, 7 * len(name)), "height": 13,
    }  # fmt: skip


def line(
    x: Sequence[float], y: Sequence[float], color: str, name: str, width: float = 1.75, **more: Any
) -> go.Scatter:
    """A curve."""
    look = {"color": color, "width": width, **more.pop("line", {})}
    return go.Scatter(
        x=list(x), y=list(y), mode=more.pop("mode", "lines"), name=name, line=look,
        connectgaps=False, **more,
    )  # fmt: skip


def dashed(view: View, x: Sequence[float], y: Sequence[float], name: str) -> go.Scatter:
    """The curve of the compared run."""
    return line(x, y, view.colors.cmp, name, 1.35, line={"dash": "4px,3px"})
