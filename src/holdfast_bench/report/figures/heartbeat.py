"""Figure: how often an agent should report."""

from __future__ import annotations

from functools import partial

from matplotlib.figure import Figure as Canvas

from holdfast_bench.report.cited import number, say, seconds
from holdfast_bench.report.drawing import area, canvas, foot, log_axis, pt, title
from holdfast_bench.report.figure import Figure
from holdfast_bench.report.results import Results, Row, bounds, median
from holdfast_bench.report.theme import Tokens


def figure(results: Results) -> Figure | None:
    """From `heartbeat.json`: one agent."""
    rows = sorted(results.rows("heartbeat", agents=1), key=lambda row: float(row["interval_s"]))
    if not rows:
        return None
    default = min(rows, key=lambda row: abs(row["interval_s"] - 1))
    return Figure(
        name="heartbeat",
        question="How often should an agent report?",
        answer=say(
            "Every {interval}: {traffic}, and a host that is cut off is found after {found}.",
            interval=number("heartbeat", default["interval_s"], form="{:g} s"),
            traffic=number(
                "heartbeat", default["bytes_per_s"], form="{:.2f} KB/s", formula="per_thousand"
            ),
            found=seconds("heartbeat", median(default["detection_s"])),
        ),
        caption="Of one agent without workers, in both directions, with TLS. A killed worker needs "
        "no heartbeat: its agent sees it at once.",
        source="heartbeat",
        command="holdfast bench heartbeat",
        draw=partial(_draw, rows),
        rounds=results.rounds("heartbeat"),
    )


def _draw(rows: list[Row], t: Tokens) -> Canvas:
    fig = canvas(268)
    intervals = [float(row["interval_s"]) for row in rows]
    traffic = [row["bytes_per_s"] / 1000 for row in rows]
    found = [median(row["detection_s"]) for row in rows]
    titles = ("Traffic of one agent", "From the cut to its detection")
    for place, (heading, values, unit) in enumerate(
        zip(titles, (traffic, found), ("KB/s", "s"), strict=True)
    ):
        low, high = min(values) / 2, max(values) * 2
        limits = {"xlim": (min(intervals) / 1.3, max(intervals) * 1.3), "ylim": (low, high)}
        ax = area(fig, 72 + place * 340, 34, 252, 178, xscale="log", yscale="log", **limits)
        ticks = [v for v in (0.03, 0.1, 0.3, 1, 3, 10, 30) if low <= v <= high]
        names = [f"{v:g}{f' {unit}' if i == len(ticks) - 1 else ''}" for i, v in enumerate(ticks)]
        log_axis(ax.yaxis, ticks, names)
        log_axis(
            ax.xaxis, intervals, [f"{v:g}{' s' if not i else ''}" for i, v in enumerate(intervals)]
        )
        if place:
            lowest, highest = zip(*(bounds(row["detection_s"]) for row in rows), strict=True)
            ax.vlines(intervals, lowest, highest, color=t["holdfast"], linewidth=pt(3))
        look = {"marker": "o", "markersize": pt(7), "markeredgecolor": t["panel"]}
        ax.plot(intervals, values, color=t["holdfast"], linewidth=pt(1.6), **look)
        title(fig, 72 + place * 340, 18, heading, t)
    foot(fig, 72, "Heartbeat interval, log axes. Bar: lowest to highest.", t)
    return fig
