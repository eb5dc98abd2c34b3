"""Figure: how much of added hosts is used."""

from __future__ import annotations

from functools import partial
from typing import Final

from matplotlib.figure import Figure as Canvas

from holdfast_bench.report import drawing
from holdfast_bench.report.cited import number, say
from holdfast_bench.report.drawing import DASHED, DOTTED, area, canvas, foot, keys, pt, title
from holdfast_bench.report.figure import Figure
from holdfast_bench.report.results import Results, Row
from holdfast_bench.report.theme import Tokens

LOST: Final = {"reduce": "state", "wait": "rest", "imbalance": "init", "control": "ddp"}


def figure(results: Results) -> Figure | None:
    """From `emulate.json`: weak scaling, as far as it was emulated, and beyond."""
    measured = results.rows("emulate", measure="emulated", scaling="weak")
    predicted = results.rows("emulate", measure="predicted", scaling="weak")
    if len(measured) < 2:
        return None
    last = measured[-1]
    errors = [abs(row["error_percent"]) for row in measured if row["error_percent"] is not None]
    worst = max((key for key in LOST), key=lambda key: last[f"{key}_share"])
    model = results.rows("emulate", measure="model")[0]
    return Figure(
        name="scaling",
        question="How much of added hosts is used?",
        answer=say(
            "{efficiency} on {hosts} emulated hosts. The largest loss is "
            f"{worst}, {{lost}} of a step.",
            efficiency=number("emulate", last["efficiency"], form="{:.1f} %", formula="percent"),
            hosts=number("emulate", last["hosts"], form="{:.0f}"),
            lost=number("emulate", last[f"{worst}_share"], form="{:.1f} %", formula="percent"),
        ),
        caption="Weak scaling. Compute is emulated by sleeping; coordinator, agents, transports "
        "and commits are real, and share the cores of this machine. Predictions are for hosts with "
        "a core of their own for the network. Each measured size, predicted from all "
        f"others, is off by up to {max(errors, default=0):.1f} %. A step computes for "
        f"{model['compute_s']:g} s.",
        source="emulate",
        command="holdfast bench emulate",
        draw=partial(_draw, measured, predicted),
        rounds=results.rounds("emulate"),
    )


def _draw(measured: list[Row], predicted: list[Row], t: Tokens) -> Canvas:
    fig = canvas(300)
    ax = area(fig, 44, 56, 330, 188, xscale="log", xlim=(0.85, 1300), ylim=(0, 108))
    drawing.log_axis(
        ax.xaxis, [1, 4, 16, 64, 256, 1024], ["1 host", "4", "16", "64", "256", "1,024"]
    )
    ax.set_yticks([0, 25, 50, 75, 100], ["0 %", "25", "50", "75", "100"])
    ax.axhline(100, color=t["ink3"], linewidth=pt(1.2), linestyle=DASHED)
    beyond = [(row["hosts"], 100 * row["efficiency"]) for row in predicted]
    ax.plot(*zip(*beyond, strict=True), color=t["holdfast"], linewidth=pt(1.4), linestyle=DOTTED)
    hollow = {"color": t["panel"], "markeredgecolor": t["holdfast"], "markersize": pt(7)}
    ax.plot(*zip(*beyond[1:], strict=True), "o", **hollow)
    own = [(row["hosts"], 100 * row["efficiency"]) for row in measured]
    look = {"color": t["holdfast"], "marker": "o", "markeredgecolor": t["panel"]}
    ax.plot(*zip(*own, strict=True), linewidth=pt(2.4), markersize=pt(8), **look)
    end = beyond[-1]
    at = {"textcoords": "offset points", "ha": "right", "va": "top", "fontsize": pt(12)}
    ax.annotate(f"{end[1]:.1f} %", end, (pt(6), -pt(8)), color=t["ink2"], **at)
    title(fig, 44, 20, "Efficiency by hosts", t)
    drawing.note(fig, 44, 42, "filled: emulated, hollow: predicted, dashed: ideal", t, "ink2")
    several = measured[1:]
    lost = [sum(row[f"{key}_share"] for key in LOST) for row in several]
    bars = area(fig, 444, 56, 256, 188, xlim=(-0.6, len(several) - 0.4), ylim=(0, 125 * max(lost)))
    names = [f"{r['hosts']}{' hosts' if not i else ''}" for i, r in enumerate(several)]
    bars.set_xticks(range(len(several)), names)
    for place, (row, whole) in enumerate(zip(several, lost, strict=True)):
        base = 0.0
        for key, color in LOST.items():
            share = 100 * row[f"{key}_share"]
            bars.bar(place, share, 0.52, base, **drawing.fill(t, color))
            base += share
        text = {"textcoords": "offset points", "ha": "center", "fontsize": pt(12)}
        where = ((place, base), (0, pt(6)))
        bars.annotate(f"{100 * whole:.1f} %", *where, color=t["ink"], fontweight=600, **text)
    bars.set_yticks([])
    bars.grid(visible=False)
    title(fig, 444, 20, "What steps lose", t)
    keys(fig, t, 444, 42, [(color, key, None) for key, color in LOST.items()])
    foot(fig, 44, "Left: log axis of hosts. Right: share of a step, from 0.", t)
    return fig
