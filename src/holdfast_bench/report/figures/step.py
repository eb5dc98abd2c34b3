"""Figure: what exactness costs without failures."""

from __future__ import annotations

from functools import partial

from matplotlib.figure import Figure as Canvas

from holdfast_bench.report import drawing
from holdfast_bench.report.cited import number, say
from holdfast_bench.report.drawing import area, canvas, dot, foot, horizontal, keys, note, row_text
from holdfast_bench.report.figure import Figure
from holdfast_bench.report.results import Results, Row, remark, values
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
    doubt = remark(values(next(iter(loads.values()))[own]["samples_per_s"]))
    return Figure(
        name="step",
        question="What does exactness cost without failures?",
        answer=say(f"With a shard for each worker it is {reach} as fast as DDP.{doubt}", **parts),
        caption="Ratios are medians of the ratios of each round, so they can differ from the "
        "quotient of two marks.",
        source="scaling",
        command="holdfast bench scaling",
        draw=partial(_draw, loads, own),
        rounds=results.rounds("scaling"),
    )


def _draw(loads: dict[str, dict[str, Row]], own: str, t: Tokens) -> Canvas:
    fig = canvas(96 + 50 * len(loads))
    shares = [float(row["of_independent"]) for rows in loads.values() for row in rows.values()]
    most = max(1.05, *shares)
    limits = {"xlim": (0, most + 0.03), "ylim": (len(loads) - 0.45, -0.55)}
    ax = area(fig, 76, 44, 550, 50 * len(loads), **limits)
    horizontal(ax)
    ticks = [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    ax.set_xticks(ticks, ["0", "0.2", "0.4", "0.6", "0.8", "1"])
    ax.axvline(1, color=t["ink3"], linewidth=drawing.pt(1.2), linestyle=drawing.DASHED)
    note(fig, 76 + 550 / (most + 0.03), 34, "limit", t, "ink2", 12, 600, ha="center")
    note(fig, 714, 34, "of DDP", t, ha="right")
    eight = ("holdfast", "holdfast, 8 shards", "")
    keys(fig, t, 76, 14, [("holdfast", own, None), eight, ("ddp", "DDP", None)])
    for y, (name, rows) in enumerate(loads.items()):
        ax.axhline(y, color=t["grid"], linewidth=drawing.pt(1), zorder=0)
        row_text(ax, name, y, -10, t["ink"], size=13, bold=False)
        dot(ax, float(rows["DDP"]["of_independent"]), y + 0.02, t["ddp"], t["panel"], 8, "s")
        dot(ax, float(rows[own]["of_independent"]), y - 0.2, t["holdfast"], t["panel"], 9)
        if more := rows.get("holdfast, 8 shards"):
            dot(ax, float(more["of_independent"]), y + 0.24, t["panel"], t["holdfast"], 8)
        row_text(ax, f"{float(rows[own]['of_ddp']):.2f} ×", y, 88, t["kelp"])
    text = "Samples/s of two workers as a share of two processes that do not communicate."
    foot(fig, 76, text, t)
    return fig
