"""Figure: what a checkpoint costs."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from matplotlib.figure import Figure as Canvas

from holdfast_bench.report.cited import number, say
from holdfast_bench.report.drawing import DOTTED, apart, area, box, canvas, foot, note, pt, title
from holdfast_bench.report.figure import Figure
from holdfast_bench.report.published import CHECKPOINT_PERCENT
from holdfast_bench.report.results import Results, Row, median, remark, values
from holdfast_bench.report.theme import Tokens

OURS: Final = "holdfast"
FLUSHED: Final = ("-fsync", "-wait")
"""Variants that wait for the disk are only in the data."""
_MARKS: Final = ("s", "^", "D", "v", "P", "X", "*", "<")


def figure(results: Results) -> Figure | None:
    """From `checkpoint.json`: overhead by the steps from one save to the next."""
    rows = [
        row
        for row in results.rows("checkpoint", measure="saving")
        if row.get("overhead_pct") and not row["system"].endswith(FLUSHED)
    ]
    if not any(row["system"] == OURS for row in rows):
        return None
    workers = min(row["workers"] for row in rows)
    load = rows[0]["workload"]
    rows = [row for row in rows if (row["workload"], row["workers"]) == (load, workers)]
    every = sorted({row["every"] for row in rows}, reverse=True)
    shown = every[-1] if 10 not in every else 10
    cells = {row["system"]: row["overhead_pct"] for row in rows if row["every"] == shown}
    at = {name: median(cell) for name, cell in cells.items()}
    peers = {name: value for name, value in at.items() if not name.startswith(OURS)}
    best = min(peers, key=lambda name: peers[name], default=None)
    text = "Every {every} steps: {own}"
    numbers = {
        "every": number("checkpoint", shown, form="{:.0f}"),
        "own": number("checkpoint", at[OURS], form="{:.3g} %"),
    }
    if best is not None:
        text += f"; {{best}} for the best peer, {best}"
        numbers["best"] = number("checkpoint", peers[best], form="{:.3g} %")
    return Figure(
        name="checkpoint",
        question="What does a checkpoint cost?",
        answer=say(f"{text}.{remark(values(cells[OURS]), 0)}", **numbers),
        caption=f"Workload {load}, {workers} worker: how much longer training takes than without "
        "checkpoints. The machine's own noise can make an overhead negative.",
        source="checkpoint",
        command="holdfast bench checkpoint",
        draw=partial(_draw, rows, every, load),
        rounds=results.rounds("checkpoint"),
    )


def _draw(rows: list[Row], every: list[int], load: str, t: Tokens) -> Canvas:
    fig = canvas(300)
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        point = every.index(row["every"]), median(row["overhead_pct"])
        lines.setdefault(row["system"], []).append(point)
    values = [value for line in lines.values() for _, value in line]
    limits = min(0.0, *values), max(*values, *CHECKPOINT_PERCENT.values(), 10.0) * 1.05
    right = max(1, len(every) - 1) + 0.1
    ax = area(fig, 44, 46, 310, 198, xlim=(-0.15, right), ylim=limits)
    ax.set_xticks(range(len(every)), [str(each) for each in every])
    ends = apart([line[-1][1] for line in lines.values()], (limits[1] - limits[0]) * 18 / 198)
    for (name, line), mark, end in zip(lines.items(), _MARKS * 3, ends, strict=False):
        _line(ax, t, name, line, mark)
        mine = name == OURS
        text = {"fontsize": pt(12), "va": "center", "annotation_clip": False}
        look = {"color": t["kelp" if mine else "ink2"], "fontweight": 600 if mine else 400}
        place = (right + 0.04 * len(every), end)
        ax.annotate(f"{name}  {line[-1][1]:.3g} %", place, **look, **text)
    ticks = [float(each) for each in ax.get_yticks() if limits[0] <= each <= limits[1]]
    ax.set_yticks(ticks, [f"{v:g}{' %' if v == 0 else ''}" for v in ticks])
    title(fig, 44, 18, f"Overhead, {load}", t)
    _published(fig, t, limits, ticks)
    foot(fig, 44, "Steps from one checkpoint to the next. Linear axes.", t)
    return fig


def _line(ax: Any, t: Tokens, name: str, line: list[tuple[int, float]], mark: str) -> None:
    mine = name == OURS
    look = {"marker": "o" if mine else mark, "markeredgecolor": t["panel"], "clip_on": False}
    look |= {"color": t["holdfast" if mine else "ddp"], "zorder": 4 if mine else 3}
    width = pt(2.4 if mine else 1.4)
    ax.plot(*zip(*line, strict=True), markersize=pt(7), linewidth=width, **look)


def _published(fig: Canvas, t: Tokens, limits: tuple[float, float], ticks: list[float]) -> None:
    """Published figures, in a panel of their own."""
    box(fig, 572, 0, 148, 266, facecolor=t["inset"], edgecolor="none", zorder=-5)
    ax = area(fig, 592, 46, 108, 198, xlim=(-0.3, 2.3), ylim=limits)
    ax.patch.set_visible(False)
    ax.grid(axis="y", color=t["line"])
    ax.set_yticks(ticks, [""] * len(ticks))
    ax.set_xticks(range(3), [str(each) for each in CHECKPOINT_PERCENT])
    values = list(CHECKPOINT_PERCENT.values())
    look = {"color": t["published"], "linestyle": DOTTED, "linewidth": pt(1.4)}
    hollow = {"marker": "o", "markerfacecolor": t["inset"], "markersize": pt(7)}
    ax.plot(range(3), values, clip_on=False, **look, **hollow)
    text = {"textcoords": "offset points", "ha": "center", "fontsize": pt(12)}
    for x, value in enumerate(values):
        ax.annotate(f"{value} %", (x, value), (0, pt(8)), color=t["ink2"], **text)
    note(fig, 582, 18, "published elsewhere", t, "ink2", 12, 600)
    note(fig, 582, 34, "other model and disk", t)
