"""Figure: whether a recovery changes the training."""

from __future__ import annotations

from functools import partial
from typing import Any

from matplotlib.figure import Figure as Canvas

from holdfast_bench.report.cited import number, say
from holdfast_bench.report.drawing import area, canvas, foot, pt, title
from holdfast_bench.report.figure import Figure
from holdfast_bench.report.results import Results, Row
from holdfast_bench.report.theme import Tokens

RUNS = ("none", "live", "restart")


def figure(results: Results) -> Figure | None:
    """From `timeline.json`."""
    runs = {row["recovery"]: row for row in results.rows("timeline", measure="run")}
    steps = {name: results.rows("timeline", measure="step", recovery=name) for name in runs}
    if not set(RUNS) <= runs.keys():
        return None
    hashes = {row["weights_sha256"] for row in runs.values()}
    losses = {tuple(row["loss"] for row in each) for each in steps.values()}
    replaced = results.rows("timeline", measure="replaced")
    known = {(row["step"], row["loss"]) for row in steps["none"]}
    is_equal = len(hashes) == len(losses) == 1
    is_equal &= all((row["step"], row["loss"]) in known for row in replaced)
    count = number("timeline", len(steps["none"]), form="{:.0f}")
    answer = (
        "No: all {steps} losses and the weights are equal, bit for bit. A restart computes {again} "
        "steps again, a live recovery {none}."
        if is_equal
        else "YES: after {steps} steps the runs differ, although they must not ({again}, {none})."
    )
    return Figure(
        name="loss",
        question="Does a recovery change the training?",
        answer=say(
            answer,
            steps=count,
            again=number("timeline", runs["restart"]["recomputed_steps"], form="{:.0f}"),
            none=number("timeline", runs["live"]["recomputed_steps"], form="{:.0f}"),
        ),
        caption="The losses are those of the steps that count. Red: steps that were computed "
        "again; hollow: the same ones before, where they were recorded. One run each.",
        source="timeline",
        command="holdfast bench timeline",
        draw=partial(_draw, steps, replaced),
        rounds=results.rounds("timeline"),
    )


def _draw(steps: dict[str, list[Row]], replaced: list[Row], t: Tokens) -> Canvas:
    fig = canvas(300)
    for place, (name, color) in enumerate((("live", "holdfast"), ("restart", "torchrun"))):
        rows = [row for row in steps[name] if -0.7 < row["at_s"] < 0.9]
        ax = area(fig, 44, 34 + place * 126, 400, 88, xlim=(-0.7, 0.9))
        ax.set_xticks([-0.5, 0, 0.5], ["−0.5 s", "killed", "0.5"] if place else ["", "", ""])
        ax.axvline(0, color=t["red"], linewidth=pt(1))
        before = [row for row in replaced if row["recovery"] == name and row["at_s"] > -0.7]
        done = [row["at_s"] for row in rows if row["at_s"] > 0]
        last = max((row["at_s"] for row in (*rows, *before) if row["at_s"] <= 0), default=0.0)
        if done:
            ax.axvspan(last, done[0], facecolor=t["red-tint"], edgecolor="none", zorder=0)
        style = {"color": t[color], "marker": "o", "markersize": pt(3.5), "linewidth": pt(1.4)}
        ax.plot([r["at_s"] for r in rows], [r["loss"] for r in rows], markeredgewidth=0, **style)
        hollow = {"color": t["panel"], "markeredgecolor": t[color], "markersize": pt(4.5)}
        ax.plot([r["at_s"] for r in before], [r["loss"] for r in before], "o", **hollow)
        again = [row for row in rows if row["again"]]
        ring = {"color": t["panel"], "markeredgecolor": t["red"], "markersize": pt(5.5)}
        ax.plot([r["at_s"] for r in again], [r["loss"] for r in again], "o", **ring)
        heading = {"live": "Live recovery", "restart": "Restart from a checkpoint"}[name]
        title(fig, 44, 20 + place * 126, heading, t)
    ax = area(fig, 504, 34, 196, 214, xlim=(0, len(steps["none"])))
    looks = {
        "none": ("kelp-tint", 7, "-"),
        "live": ("holdfast", 2.4, "-"),
        "restart": ("torchrun", 1.2, (0, (3, 3))),
    }
    for name, (color, width, dash) in looks.items():
        losses = [row["loss"] for row in steps[name]]
        look = {"color": t[color], "linewidth": pt(width), "linestyle": dash}
        ax.plot(range(1, len(losses) + 1), losses, **look)
    named = (("none", "no failure"), ("live", "live"), ("restart", "restart"))
    for place, (name, text) in enumerate(named):
        color, width, dash = looks[name]
        y = 0.9 - 0.11 * place
        keys: dict[str, Any] = {"transform": ax.transAxes}
        look = {"color": t[color], "linewidth": pt(width), "linestyle": dash}
        ax.plot([0.5, 0.6], [y, y], solid_capstyle="butt", **look, **keys)
        ax.text(0.64, y, text, fontsize=pt(12), color=t["ink2"], va="center", **keys)
    ax.set_xticks([0, len(steps["none"])], ["step 0", str(len(steps["none"]))])
    title(fig, 504, 20, "By step: three curves", t)
    text = "Training loss of each step. Left: by seconds from the kill. Tint: no step is committed."
    foot(fig, 44, text, t)
    return fig
