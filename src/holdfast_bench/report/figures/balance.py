"""Figure: what balance gains with unequal workers."""

from __future__ import annotations

from functools import partial
from typing import Final

from matplotlib.figure import Figure as Canvas

from holdfast_bench.report import drawing
from holdfast_bench.report.cited import number, say
from holdfast_bench.report.drawing import area, canvas, dot, foot, horizontal, keys, note, row_text
from holdfast_bench.report.figure import Figure
from holdfast_bench.report.results import Results, Row, remark, values
from holdfast_bench.report.theme import Tokens

SYSTEMS: Final = ("even", "dynamic", "DDP")
"""Systems that are drawn, of those in the data."""


def figure(results: Results) -> Figure | None:
    """From `balance.json`."""
    cases: dict[str, dict[str, Row]] = {}
    for row in results.rows("balance"):
        if row["system"] in SYSTEMS:
            cases.setdefault(f"{row['workload']}, {row['cluster']}", {})[row["system"]] = row
    cases = {name: rows for name, rows in cases.items() if {"even", "dynamic"} <= rows.keys()}
    if not cases:
        return None
    gains = [(rows["dynamic"]["efficiency"], rows["even"]["efficiency"]) for rows in cases.values()]
    low, high = (pick(gains, key=lambda pair: pair[0] / pair[1]) for pick in (min, max))
    reach = "{low} to {high}" if len(cases) > 1 else "{high}"
    doubt = remark(values(next(iter(cases.values()))["dynamic"]["samples_per_s"]))
    return Figure(
        name="balance",
        question="What does balance gain with unequal workers?",
        answer=say(
            f"{reach} over even shards.{doubt}",
            low=number("balance", *low, form="{:+.0f} %", formula="gain_percent"),
            high=number("balance", *high, form="{:+.0f} %", formula="gain_percent"),
        ),
        caption="Slower devices are emulated; the limit is the sum of the devices' speeds alone.",
        source="balance",
        command="holdfast bench balance",
        draw=partial(_draw, cases),
        rounds=results.rounds("balance"),
    )


def _draw(cases: dict[str, dict[str, Row]], t: Tokens) -> Canvas:
    fig = canvas(100 + 34 * len(cases))
    left = 256
    width = 362
    found = [float(row["efficiency"]) for rows in cases.values() for row in rows.values()]
    most = max(1.0, *found) + 0.08
    limits = {"xlim": (0, most), "ylim": (len(cases) - 0.45, -0.55)}
    ax = area(fig, left, 46, width, 34 * len(cases), **limits)
    horizontal(ax)
    ax.set_xticks([0, 0.25, 0.5, 0.75, 1.0], ["0 %", "25", "50", "75", "100"])
    ax.axvline(1, color=t["ink3"], linewidth=drawing.pt(1.2), linestyle=drawing.DASHED)
    note(fig, left + width / most, 36, "limit", t, "ink2", ha="center")
    note(fig, 700, 36, "gain", t, ha="right")
    even = ("holdfast", "even", "")
    keys(fig, t, left, 16, [("holdfast", "dynamic", None), even, ("ddp", "DDP", None)])
    for y, (name, rows) in enumerate(cases.items()):
        before, after = (float(rows[kind]["efficiency"]) for kind in ("even", "dynamic"))
        row_text(ax, name, y, -10, t["ink"], size=13, bold=False)
        ax.plot([before, after], [y, y], color=t["rest"], linewidth=drawing.pt(2), zorder=2)
        if ddp := rows.get("DDP"):
            dot(ax, float(ddp["efficiency"]), y, t["ddp"], t["panel"], 8, "s")
        dot(ax, before, y, t["panel"], t["holdfast"], 8)
        dot(ax, after, y, t["holdfast"], t["panel"], 10)
        row_text(ax, f"{100 * (after / before - 1):+.0f} %", y, 82, t["kelp"])
    foot(fig, left, "Throughput as a share of the limit. Linear axis from 0.", t)
    return fig
