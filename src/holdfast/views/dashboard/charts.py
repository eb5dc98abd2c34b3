"""Charts: what all curves share: the page-wide axis, the grid, the marks of failures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import plotly.graph_objects as go

from holdfast.record.views.run_at import FailureMark
from holdfast.views.dashboard.theme import FONT, faded
from holdfast.views.dashboard.view import View

HEIGHT: Final = 208
POINTS: Final = 600
"""Points of a curve: more than its pixels."""
MAX_MARKS: Final = 20
"""Most marks of failures; of more, neighbors have one line."""
TAG: Final = 0.05
"""The share of the axis that the tag of a failure takes: neighbors that are nearer have one."""
_TICKS_S: Final = (
    *(1, 2, 5, 10, 20, 30),
    *(60 * each for each in (1, 2, 5, 10, 20, 30)),
    *(3600 * each for each in (1, 2, 4, 12, 24)),
)
_MAX_TICKS: Final = 8


class Chart:
    """A chart of a run, built from plain values: Plotly checks them once.

    Args:
        view: The run.
        height: Pixels, as are `left` and `right`, its margins.
        tag: The share of its axis that the tag of a failure takes.

    Attributes:
        traces, shapes, annotations, layout: Parts of a figure of Plotly.
    """

    def __init__(
        self, view: View, *, height: int = HEIGHT, left: int = 42, right: int = 4, tag: float = TAG
    ) -> None:
        colors = view.colors
        tick_at, (first, *others) = ticks(view)
        self.view = view
        self.tag = tag
        self.traces: list[dict[str, Any]] = []
        self.shapes: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        self.layout: dict[str, Any] = {
            "height": height,
            "margin": {"l": left, "r": right, "t": 20, "b": 20, "pad": 0},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "showlegend": False,
            "hovermode": "x unified",
            "dragmode": False,
            "uirevision": "kept",
            "font": {"family": FONT, "size": 12, "color": colors.ink3},
            "hoverlabel": {
                "bgcolor": colors.inset, "bordercolor": colors.line,
                "font": {"family": FONT, "size": 12, "color": colors.ink},
            },
            "xaxis": {
                "range": list(view.x_range), "tickvals": tick_at, "ticktext": ["", *others],
                "showgrid": False, "zeroline": False, "showline": False, "fixedrange": True,
                "hoverformat": ",.4~g",
            },
            "yaxis": {
                "gridcolor": colors.grid, "zeroline": False, "showline": False, "nticks": 6,
                "rangemode": "tozero", "fixedrange": True, "ticksuffix": " ",
                "separatethousands": True,
            },
        }  # fmt: skip
        if tick_at:  # it begins at the axis, so that it is not taken for one of the other axis
            self.annotate(
                x=tick_at[0], y=0, xanchor="left", yanchor="top", text=first, yshift=-1,
                borderpad=0,
            )  # fmt: skip

    def annotate(self, **annotation: Any) -> None:
        """Write text; its height is a share of the chart's, unless `yref` says otherwise."""
        look = {"yref": "paper", "showarrow": False, "font": {"size": 12}}
        self.annotations.append({**look, **annotation})

    def add(self, x: Sequence[float], y: Sequence[float], **more: Any) -> None:
        """Add points."""
        self.traces.append({"type": "scatter", "x": list(x), "y": list(y), **more})

    def line(
        self, x: Sequence[float], y: Sequence[float], color: str, name: str, width: float = 1.75,
        **more: Any,
    ) -> None:  # fmt: skip
        """Add a curve; gaps stay gaps."""
        look = {"mode": "lines", "name": name, "line": {"color": color, "width": width}}
        self.add(x, y, **{**look, **more})

    def band(
        self, x: Sequence[float], low: Sequence[float], high: Sequence[float], fill: str,
        **line: Any,
    ) -> None:  # fmt: skip
        """Fill the space between two curves, which are not drawn themselves."""
        hidden = {"mode": "lines", "line": {"color": "rgba(0,0,0,0)", "width": 0, **line}}
        self.add(x, low, **hidden, hoverinfo="skip")
        self.add(x, high, **hidden, hoverinfo="skip", fill="tonexty", fillcolor=fill)

    def dashed(self, x: Sequence[float], y: Sequence[float], name: str) -> None:
        """Add the curve of the compared run."""
        look = {"color": self.view.colors.cmp, "width": 1.35, "dash": "4px,3px"}
        self.line(x, y, self.view.colors.cmp, name, line=look)

    def figure(self) -> go.Figure:
        """The chart as Plotly has it."""
        layout = {**self.layout, "shapes": self.shapes, "annotations": self.annotations}
        return go.Figure(data=self.traces, layout=layout)

    def add_marks(self) -> None:
        """Draw the failures: a line, a tint while the run recovers, a numbered tag."""
        view = self.view
        red = self.view.colors.red
        low, high = view.x_range
        groups = merged(view, self.tag)
        if len(view.marks) <= MAX_MARKS:
            bars = [(mark.begin, mark.end) for mark in view.marks]
        else:
            bars = [(group[0].begin, group[-1].end) for _, group in groups]
        for first, last in bars:
            begin, end = view.x([first, last])
            if not low <= begin <= high:
                continue
            place = {"x0": begin, "y0": 0, "y1": 1, "yref": "paper"}
            line = {"color": faded(red, 0.75), "width": 1}
            self.shapes += [
                {"type": "rect", **place, "x1": end, "fillcolor": faded(red, 0.1),
                 "line": {"width": 0}, "layer": "below"},
                {"type": "line", **place, "x1": begin, "line": line},
            ]  # fmt: skip
        for name, group in groups:
            (begin,) = view.x([group[0].begin])
            if low <= begin <= high:
                self.annotate(
                    x=begin, y=1, yanchor="bottom", yshift=1, text=f"<b>{name}</b>", bgcolor=red,
                    font={"size": 11, "color": view.colors.panel, "family": FONT}, borderpad=1,
                    width=max(13, 7 * len(name)), height=13,
                )  # fmt: skip


def ticks(view: View) -> tuple[list[float], list[str]]:
    """Places and texts of the ticks on the horizontal axis."""
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


def merged(view: View, tag: float = TAG) -> list[tuple[str, list[FailureMark]]]:
    """The marks by tag: those that would cover each other have one."""
    low, high = view.x_range
    near = tag * (high - low)
    groups: list[list[FailureMark]] = []
    last = float("-inf")
    begins = view.x([mark.begin for mark in view.marks])
    for mark, at in zip(view.marks, begins, strict=True):
        if groups and at - last < near:
            groups[-1].append(mark)
        else:
            groups.append([mark])
            last = at
    return [
        (group[0].name if len(group) == 1 else f"{group[0].name}–{group[-1].name}", group)
        for group in groups
    ]
