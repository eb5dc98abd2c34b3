"""Shard plans: the shards of each worker, and what balance did."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from holdfast.record.steps import Workers
from holdfast.record.units import count
from holdfast.views.dashboard.charts import POINTS, Chart
from holdfast.views.dashboard.markup import Panel, empty, head, key
from holdfast.views.dashboard.run_workers import FEW, MAX_WORST
from holdfast.views.dashboard.theme import faded
from holdfast.views.dashboard.view import View

TITLE: Final = "Shards per worker"
HEIGHT: Final = 232
_RIGHT: Final = 84
"""The space for names right of the curves, pixels."""
_APART: Final = 14
"""The height of a name, pixels."""
_PLANS: Final = 200
"""Most plans that are drawn, if there are many workers."""
_MIDDLE: Final = (5, 50, 95)
"""The percentiles that stand for many workers."""


def panel(view: View) -> Panel:
    """Shards of each worker, one above the other; of many workers the median, where
    most are, and those with the fewest.
    """
    measured = view.record.steps.workers
    if not measured:
        return empty(TITLE, "The first plan comes with step 1.")
    newest = measured[-1][1]
    note = f"{sum(newest['shards']):g} per step{_unscored(view)}"
    if len(newest["rank"]) > FEW:
        return _of_many(view, f"{note}, {count(len(newest['rank']), 'worker')}")
    chart = Chart(view, height=HEIGHT, left=30, right=_RIGHT)
    colors = view.colors
    rows = _changes(view)
    at = _moments(view, [row for row, _ in rows])
    base = 0.0
    for rank in sorted({rank for _, each in rows for rank in each}):
        counts = [each.get(rank, 0.0) for _, each in rows]
        color = view.fleet.color(rank)
        chart.add(
            at, [*counts, counts[-1]], name=f"rank {rank}", mode="lines", stackgroup="shards",
            line={"color": color, "width": 1.75, "shape": "hv"}, fillcolor=faded(color, 0.34),
        )  # fmt: skip
        if counts[-1]:
            label = f"rank {rank} &nbsp; <b>{counts[-1]:g}</b>"
            chart.annotate(
                x=1, xref="paper", xanchor="left", xshift=8, y=base + counts[-1] / 2, yref="y",
                text=label, font={"size": 12, "color": colors.ink2},
            )  # fmt: skip
        base += counts[-1]
    top = max(sum(each.values()) for _, each in rows)
    chart.layout["yaxis"]["range"] = [0, top * 1.02]
    chart.add_marks()
    return Panel(head=head(TITLE, note), figure=chart.figure())


def _unscored(view: View) -> str:
    """Words about a plan of equal shares for lack of scores; none if all are known."""
    missing = [each for each in view.record.events if each["event"] == "scores-missing"]
    if not missing:
        return ""
    ranks = ", ".join(str(each) for each in missing[-1].get("ranks", ()))
    return f"; began equal: no reliable score of rank {ranks}"


def _moments(view: View, rows: list[int]) -> list[float]:
    """The steps in these rows on the horizontal axis, and now."""
    times = view.record.steps.columns["at"]
    return view.x([*(float(times[row]) for row in rows), view.drawn_until])


def _changes(view: View) -> list[tuple[int, dict[int, float]]]:
    """The shards by rank where they change, with the row of their step; the last is the newest."""
    found: list[tuple[int, dict[int, float]]] = []
    for row, workers in view.record.steps.workers:
        ranks = (int(rank) for rank in workers["rank"])
        counts = dict(zip(ranks, workers["shards"], strict=True))
        if not found or found[-1][1] != counts:
            found.append((row, counts))
    every = len(found) // POINTS + 1
    return found[::-every][::-1]


def _of_many(view: View, note: str) -> Panel:
    """The median of many workers, the band in which 90 % are, and those with the fewest shards."""
    chart = Chart(view, height=HEIGHT, left=30, right=_RIGHT)
    colors = view.colors
    measured = view.record.steps.workers
    plans = measured[:: -(len(measured) // _PLANS + 1)][::-1]
    at = _moments(view, [row for row, _ in plans])
    low, middle, high = _percentiles([each["shards"] for _, each in plans])
    chart.band(at, low, high, faded(colors.ink3, 0.22), shape="hv")
    look = {"color": colors.ink2, "width": 1.75, "shape": "hv"}
    chart.line(at, middle, colors.ink2, "median", line=look)
    newest = sorted(zip(plans[-1][1]["shards"], plans[-1][1]["rank"], strict=True))
    place = 0.0
    top = max(*high, *plans[-1][1]["shards"])
    named = (colors.w0, colors.w2, colors.w1)
    for (now, rank), color in zip(newest[:MAX_WORST], named, strict=True):
        counts = [_shards_of(int(rank), each) for _, each in plans]
        line = {"color": color, "width": 1.25, "shape": "hv"}
        chart.line(at, [*counts, now], color, f"rank {rank}", line=line)
        place = max(place, now)
        chart.annotate(
            x=1, xref="paper", xanchor="left", xshift=8, y=place, yref="y",
            text=f"rank {rank:g} &nbsp; <b>{now:g}</b>", font={"size": 12, "color": color},
        )  # fmt: skip
        place += _APART * top / (HEIGHT - 40)
    chart.layout["yaxis"]["range"] = [0, top * 1.05]
    chart.add_marks()
    keys = key("--ink2", "median", f"{middle[-1]:g}") + key("--line", "90 %", kind="sq")
    return Panel(head=head(TITLE, note, keys), figure=chart.figure())


def _percentiles(shards: list[list[float]]) -> list[list[float]]:
    """The percentiles of each plan, the newest twice: it lasts until now."""
    rows: list[npt.NDArray[np.float64]] = [np.percentile(each, _MIDDLE) for each in shards]
    return np.array([*rows, rows[-1]]).T.tolist()  # type: ignore[no-any-return]  # NumPy's stubs


def _shards_of(rank: int, workers: Workers) -> float:
    ranks = workers["rank"]
    return workers["shards"][ranks.index(rank)] if rank in ranks else 0.0
