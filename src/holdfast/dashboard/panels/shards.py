"""Shards per worker: what balance did."""

from __future__ import annotations

from typing import Final

from holdfast.dashboard.charts import POINTS, Chart
from holdfast.dashboard.markup import Panel, empty, head
from holdfast.dashboard.theme import faded
from holdfast.dashboard.view import View

TITLE: Final = "Shards per worker"
HEIGHT: Final = 232


def panel(view: View) -> Panel:
    """How many shards each worker computes, one above the other."""
    measured = view.record.steps.workers
    if not measured:
        return empty(TITLE, "The first plan comes with step 1.")
    chart, colors = Chart(view, height=HEIGHT, left=30, right=84), view.colors
    newest = dict(zip(measured[-1][1]["rank"], measured[-1][1]["shards"], strict=True))
    rows = _changes(view)
    times = view.record.steps.columns["at"]
    at = view.x([*(float(times[row]) for row, _ in rows), view.end])
    ranks = sorted({int(rank) for _, each in rows for rank in each})
    base = 0.0
    for rank in ranks:
        counts = [each.get(rank, 0.0) for _, each in rows]
        color = view.fleet.color(rank)
        chart.add(
            at, [*counts, counts[-1]], name=f"rank {rank}", mode="lines", stackgroup="shards",
            line={"color": color, "width": 1.75, "shape": "hv"}, fillcolor=faded(color, 0.34),
        )  # fmt: skip
        now = newest.get(rank, 0.0)
        if now and len(ranks) <= 12:
            label = f"rank {rank} &nbsp; <b>{now:g}</b>"
            chart.annotate(
                x=1, xref="paper", xanchor="left", xshift=8, y=base + now / 2, yref="y",
                text=label, font={"size": 12, "color": colors.ink2},
            )  # fmt: skip
        base += now
    top = max(sum(each.values()) for _, each in rows)
    chart.layout["yaxis"]["range"] = [0, top * 1.02]
    chart.add_marks()
    return Panel(head=head(TITLE, f"{sum(newest.values()):g} per step"), figure=chart.figure())


def _changes(view: View) -> list[tuple[int, dict[int, float]]]:
    """The shards by rank where they change, with the row of their step."""
    found: list[tuple[int, dict[int, float]]] = []
    for row, workers in view.record.steps.workers:
        ranks = (int(rank) for rank in workers["rank"])
        counts = dict(zip(ranks, workers["shards"], strict=True))
        if not found or found[-1][1] != counts:
            found.append((row, counts))
    return found if len(found) <= POINTS else found[:: len(found) // POINTS + 1]
