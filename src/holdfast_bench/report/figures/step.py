"""Figure: what exactness costs without failures."""

from __future__ import annotations

from functools import partial

from matplotlib.figure import Figure as Canvas

from holdfast_bench.report.cited import number, say
from holdfast_bench.report.drawing import DASHED, area, canvas, foot, horizontal, keys, note, pt
from holdfast_bench.report.figure import Figure
from holdfast_bench.report.results import Results, Row
from holdfast_bench.report.theme import Tokens

WORKERS = 2


def figure(results: Results) -> Figure | None:
    """From `scaling.json`: two workers, as a share of processes that do not communicate."""
    loads: dict[str, dict[str, Row]] = {}
    for row in results.rows("scaling", workers=WORKERS):
        loads.setdefault(row["workload"], {})[row["way"]] = row
    own = f"holdfast, {WORKERS} shards"
    loads = {name: rows for name, rows in loads.items() if own in rows and "DDP" in rows}
    if not loads:
        return None
    shares = sorted({float(rows[own]["of_ddp"]) for rows in loads.values()})
    parts = {"high": number("scaling", shares[-1], form="{:.2f} ×")}
    if len(shares) > 1:
        parts["low"] = number("scaling", shares[0], form="{:.2f}")
    reach = "{low} to {high}" if len(shares) > 1 else "{high}"
    return Figure(
        name="step",
        question="What does exactness cost without failures?",
        answer=say(f"With a shard for each worker it is {reach} as fast as DDP.", **parts),
        caption="Ratios are medians of the ratios of each round, so they can differ from the "
        "quotient of two marks.",
        source="scaling",
        command="holdfast bench scaling",
        draw=partial(_draw, loads, own),
        rounds=results.rounds("scaling"),
    )


def _draw(loads: dict[str, dict[str, Row]], own: str, t: Tokens) -> Canvas:
    fig = canvas(96 + 50 * len(loads))
    most = max(
        1.05, *(float(row["of_independent"]) for rows in loads.values() for row in rows.values())
    )
    ax = area(
        fig, 76, 44, 550, 50 * len(loads), xlim=(0, most + 0.03), ylim=(len(loads) - 0.45, -0.55)
    )
    horizontal(ax)
    ticks = [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    ax.set_xticks(ticks, ["0", "0.2", "0.4", "0.6", "0.8", "1"])
    ax.axvline(1, color=t["ink3"], linewidth=pt(1.2), linestyle=DASHED)
    note(fig, 76 + 550 / (most + 0.03), 34, "limit", t, "ink2", 12, 600, ha="center")
    note(fig, 714, 34, "of DDP", t, ha="right")
    keys(
        fig,
        t,
        76,
        14,
        [("holdfast", own, None), ("holdfast", "holdfast, 8 shards", ""), ("ddp", "DDP", None)],
    )
    for y, (name, rows) in enumerate(loads.items()):
        ax.axhline(y, color=t["grid"], linewidth=pt(1), zorder=0)
        at = {"textcoords": "offset points", "va": "center"}
        ax.annotate(name, (0, y), (-pt(10), 0), ha="right", fontsize=pt(13), color=t["ink"], **at)
        ring = {"markeredgecolor": t["panel"], "zorder": 4}
        ax.plot(
            float(rows["DDP"]["of_independent"]),
            y + 0.02,
            "s",
            color=t["ddp"],
            markersize=pt(8),
            **ring,
        )
        ax.plot(
            float(rows[own]["of_independent"]),
            y - 0.2,
            "o",
            color=t["holdfast"],
            markersize=pt(9),
            **ring,
        )
        if eight := rows.get("holdfast, 8 shards"):
            hollow = {
                "color": t["panel"],
                "markeredgecolor": t["holdfast"],
                "markeredgewidth": pt(1.6),
            }
            ax.plot(float(eight["of_independent"]), y + 0.24, "o", markersize=pt(8), **hollow)
        where = {"xycoords": ("axes fraction", "data"), "ha": "right", "fontsize": pt(12)}
        text = f"{float(rows[own]['of_ddp']):.2f} ×"
        ax.annotate(text, (1, y), (pt(88), 0), fontweight=600, color=t["kelp"], **where, **at)
    foot(
        fig, 76, "Samples/s of two workers as a share of two processes that do not communicate.", t
    )
    return fig
