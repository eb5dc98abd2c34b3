"""Figure: what a checkpoint costs."""

from __future__ import annotations

from functools import partial
from typing import Final

from matplotlib.figure import Figure as Canvas

from holdfast.report.cited import number, say
from holdfast.report.drawing import DOTTED, apart, area, box, canvas, foot, note, pt, title
from holdfast.report.figure import Figure
from holdfast.report.published import CHECKPOINT_PERCENT
from holdfast.report.results import Results, Row, median
from holdfast.report.theme import Tokens

OURS: Final = "holdfast"
_MARKS: Final = ("s", "^", "D", "v", "P", "X", "*", "<")


def figure(results: Results) -> Figure | None:
    """From `checkpoint.json`: overhead by the steps from one save to the next."""
    rows = [r for r in results.rows("checkpoint", measure="saving") if r.get("overhead_pct")]
    if not any(row["system"] == OURS for row in rows):
        return None
    workers = min(row["workers"] for row in rows)
    load = rows[0]["workload"]
    rows = [row for row in rows if (row["workload"], row["workers"]) == (load, workers)]
    every = sorted({row["every"] for row in rows}, reverse=True)
    shown = every[-1] if 10 not in every else 10
    at = {row["system"]: median(row["overhead_pct"]) for row in rows if row["every"] == shown}
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
        answer=say(f"{text}.", **numbers),
        caption=f"Workload {load}, {workers} worker: how much longer training takes than without "
        "checkpoints. The machine's own noise can make an overhead negative.",
        source="checkpoint",
        command="holdfast bench checkpoint",
        draw=partial(_draw, rows, every, load),
        rounds=results.rounds("checkpoint"),
    )


def _draw(rows: list[Row], every: list[int], load: str, t: Tokens) -> Canvas:
    fig = canvas(300)
    systems = list(dict.fromkeys(row["system"] for row in rows))
    lines = {
        name: [
            (every.index(r["every"]), median(r["overhead_pct"]))
            for r in rows
            if r["system"] == name
        ]
        for name in systems
    }
    values = [value for line in lines.values() for _, value in line]
    low, high = min(0.0, *values), max(*values, *CHECKPOINT_PERCENT.values(), 10.0) * 1.05
    limits = {"xlim": (-0.15, max(1, len(every) - 1) + 0.1), "ylim": (low, high)}
    ax = area(fig, 44, 46, 310, 198, **limits)
    ax.set_xticks(range(len(every)), [str(each) for each in every])
    ends = apart([line[-1][1] for line in lines.values()], (high - low) * 15 / 198)
    for (name, line), mark, end in zip(lines.items(), _MARKS * 3, ends, strict=False):
        mine = name == OURS
        color = t["holdfast" if name.startswith(OURS) else "ddp"]
        look = {"marker": "o" if mine else mark, "markeredgecolor": t["panel"], "color": color}
        ax.plot(
            *zip(*line, strict=True),
            clip_on=False,
            markersize=pt(7),
            linewidth=pt(2.4 if mine else 1.4),
            zorder=4 if mine else 3,
            **look,
        )
        text = {"fontsize": pt(12), "va": "center", "annotation_clip": False}
        ink = t["kelp" if mine else "ink2"]
        weight = 600 if mine else 400
        place = (limits["xlim"][1] + 0.04 * len(every), end)
        ax.annotate(f"{name}  {line[-1][1]:.3g} %", place, color=ink, fontweight=weight, **text)
    ticks = ax.get_yticks()
    ax.set_yticks(ticks, [f"{v:g}{' %' if v == 0 else ''}" for v in ticks])
    ax.set_ylim(low, high)
    title(fig, 44, 18, f"Overhead, {load}", t)
    box(fig, 572, 0, 148, 266, facecolor=t["inset"], edgecolor="none", zorder=-5)
    pub = area(fig, 592, 46, 108, 198, xlim=(-0.3, 2.3), ylim=(low, high))
    pub.patch.set_visible(False)
    pub.grid(axis="y", color=t["line"])
    pub.set_yticks(ticks, [""] * len(ticks))
    pub.set_ylim(low, high)
    pub.set_xticks(range(3), [str(each) for each in CHECKPOINT_PERCENT])
    style = {
        "color": t["published"],
        "linestyle": DOTTED,
        "marker": "o",
        "markerfacecolor": t["inset"],
    }
    pub.plot(
        range(3),
        list(CHECKPOINT_PERCENT.values()),
        clip_on=False,
        markersize=pt(7),
        linewidth=pt(1.4),
        **style,
    )
    for x, value in enumerate(CHECKPOINT_PERCENT.values()):
        pub.annotate(
            f"{value} %",
            (x, value),
            (0, pt(8)),
            textcoords="offset points",
            ha="center",
            color=t["ink2"],
            fontsize=pt(12),
        )
    note(fig, 582, 18, "published elsewhere", t, "ink2", 12, 600)
    note(fig, 582, 34, "other model and disk", t)
    foot(fig, 44, "Steps from one checkpoint to the next. Linear axes.", t)
    return fig
