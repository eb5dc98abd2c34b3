"""Figure: what the time of a recovery is spent on."""

from __future__ import annotations

from functools import partial
from typing import Final

from matplotlib.figure import Figure as Canvas

from holdfast_bench.report.cited import Sentence, number, say
from holdfast_bench.report.drawing import area, canvas, fill, foot, horizontal, keys, pt, row_text
from holdfast_bench.report.figure import Figure
from holdfast_bench.report.results import Results, Row, live_phases, median
from holdfast_bench.report.theme import Tokens

PHASES: Final = {
    "detect": "detect", "restart": "halt, restart", "init": "initialize", "state": "load state",
    "first": "first step",
}  # fmt: skip
RESTART_PHASES: Final = {
    "found": "detect", "forked": "restart", "halted": "restart", "back": "restart",
    "all ready": "init", "loaded": "state", "state": "state", "next step": "first",
}  # fmt: skip
"""The phases of a recovery report."""

Bar = tuple[str, dict[str, float], float]
"""A name, the seconds of each phase, and the seconds of the whole."""


def figure(results: Results) -> Figure | None:
    """From `recovery.json` and `timeline.json`."""
    bars = [_live(row) for row in results.rows("recovery", fault="kill", way="holdfast")]
    bars += [_restart(row) for row in results.rows("timeline", measure="run", recovery="restart")]
    bars = [bar for bar in bars if bar[2] > 0]
    if not bars:
        return None
    source = "recovery" if results.rows("recovery") else "timeline"
    return Figure(
        name="phases",
        question="What is the time spent on?",
        answer=_answer(bars, results),
        caption="Medians of phases need not add to the median of the whole: what is missing is "
        "hatched, and over 5 % it is said. Other systems do not report phases.",
        source=source,
        command="holdfast bench recovery, holdfast bench timeline",
        draw=partial(_draw, bars),
        rounds=results.rounds(source),
    )


def missing(bar: Bar) -> float:
    """The share of the whole that no phase has."""
    return max(0.0, 1 - sum(bar[1].values()) / bar[2])


def _live(row: Row) -> Bar:
    return f"live, {row['workload']}", live_phases(row), median(row.get("committed_s") or 0.0)


def _restart(row: Row) -> Bar:
    phases: dict[str, float] = {}
    for name, value in row.get("phases_s", {}).items():
        phase = RESTART_PHASES[name]
        phases[phase] = phases.get(phase, 0.0) + value
    return "restart, digits", phases, float(row.get("recovery_s", 0.0))


def _answer(bars: list[Bar], results: Results) -> Sentence:
    rows = results.rows("recovery", fault="kill", way="holdfast")
    if not rows:
        return say("A restart of all workers, by the phases of its recovery report.")
    times = [median(rows[0][name]) for name in ("resumed_s", "committed_s")]
    share = number("recovery", *times, form="{:.0f} %", formula="rest_percent")
    odd = [bar[0] for bar in bars if missing(bar) > 0.05]
    tail = f" Not attributed by more than a twentieth: {', '.join(odd)}." if odd else ""
    return say("{share} of a live recovery is the first step itself." + tail, share=share)


def _draw(bars: list[Bar], t: Tokens) -> Canvas:
    fig = canvas(84 + 40 * len(bars))
    items: list[tuple[str, str, str | None]] = [(k, v, None) for k, v in PHASES.items()]
    keys(fig, t, 104, 16, [*items, ("rest", "not attributed", "/////")])
    most = max(total for _, _, total in bars)
    limits = {"xlim": (0, 1.05 * most), "ylim": (len(bars) - 0.4, -0.6)}
    ax = area(fig, 124, 30, 520, 40 * len(bars), **limits)
    horizontal(ax)
    for y, (name, parts, total) in enumerate(bars):
        x = 0.0
        for phase in PHASES:
            if width := parts.get(phase, 0.0):
                ax.barh(y, width, 0.56, x, **fill(t, phase))
                x += width
        if total - x > 0.02 * total:
            hatched = {"facecolor": "none", "edgecolor": t["rest"], "hatch": "/////"}
            ax.barh(y, total - x, 0.56, x, linewidth=0.6, **hatched)
        row_text(ax, name, y, -10, t["ink"], size=13, bold=False)
        look = {"color": t["kelp"], "fontweight": 600, "fontsize": pt(12), "va": "center"}
        at = (max(total, x), y)
        ax.annotate(f"{total:.3f} s", at, (pt(8), 0), textcoords="offset points", **look)
    ticks = [value for value in ax.get_xticks() if value <= 1.05 * most]
    ax.set_xticks(ticks, [f"{v:.3g}{' s' if not i else ''}" for i, v in enumerate(ticks)])
    text = "Linear axis from the kill to the first step that all workers have committed."
    foot(fig, 124, text, t)
    return fig
