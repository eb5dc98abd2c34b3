"""Figure: what each worker does during a recovery."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any, Final

from matplotlib.figure import Figure as Canvas

from holdfast_bench.report.cited import number, say, seconds
from holdfast_bench.report.drawing import area, canvas, foot, keys, note, pt, row_text
from holdfast_bench.report.figure import Figure
from holdfast_bench.report.figures.phases import PHASES, RESTART_PHASES
from holdfast_bench.report.results import Results, Row
from holdfast_bench.report.theme import Tokens

BEFORE_S: Final = 0.2
AFTER_S: Final = 0.5
_NAMES: Final = (("live", "live recovery"), ("restart", "restart"))


def figure(results: Results) -> Figure | None:
    """From `timeline.json`."""
    runs = {row["recovery"]: row for row in results.rows("timeline", measure="run")}
    steps = {name: results.rows("timeline", measure="step", recovery=name) for name in runs}
    if not {"live", "restart"} <= runs.keys():
        return None
    again = runs["restart"]["recomputed_steps"]
    return Figure(
        name="timeline",
        question="What does each worker do meanwhile?",
        answer=say(
            "A live recovery takes {live}. A restart takes {restart}, with {again} steps again.",
            live=seconds("timeline", runs["live"]["recovery_s"]),
            restart=seconds("timeline", runs["restart"]["recovery_s"]),
            again=number("timeline", again, form="{:.0f}"),
        ),
        caption="One run each, of two workers. Steps have the times at which they were committed; "
        "the phases are those of the recovery report.",
        source="timeline",
        command="holdfast bench timeline",
        draw=partial(_draw, runs, steps, results.rows("timeline", measure="replaced")),
        rounds=results.rounds("timeline"),
    )


def _draw(
    runs: dict[str, Row], steps: dict[str, list[Row]], replaced: list[Row], t: Tokens
) -> Canvas:
    fig = canvas(252)
    ax = area(fig, 118, 40, 582, 160, xlim=(-BEFORE_S, AFTER_S), ylim=(4.75, -0.5))
    ax.grid(visible=False)
    ax.set_yticks([])
    ticks = [0, 0.1, 0.2, 0.3, 0.4, 0.5]
    ax.set_xticks(ticks, ["killed", "0.1 s", "0.2", "0.3", "0.4", "0.5"])
    ax.vlines(ticks[1:], 4.75, -0.5, color=t["grid"], linewidth=0.72, zorder=0)
    for place, (name, text) in enumerate(_NAMES):
        lost = [row for row in replaced if row["recovery"] == name]
        for rank in (0, 1):
            y = 2.6 * place + rank
            _lane(ax, t, y, rank, runs[name], steps[name], lost)
            row_text(ax, f"rank {rank}", y, -8, t["ink3"], bold=False)
        middle = 40 + 160 * (2.6 * place + 1) / 5.25 + 4
        note(fig, 8, middle, text.replace(" ", "\n"), t, "ink", 12, 600, va="center")
    ax.axvline(0, color=t["red"], linewidth=pt(1))
    keys(fig, t, 66, 16, [(phase, text, None) for phase, text in PHASES.items()])
    more = [("rest", "lost", None)] if replaced else []
    keys(fig, t, 510, 16, [("holdfast", "step", None), *more, ("red", "again", "")])
    text = "Each block is a step, up to its commit. The killed rank is empty until it is replaced."
    foot(fig, 118, text, t)
    return fig


def _lane(
    ax: Any, t: Tokens, y: float, rank: int, run: Row, steps: list[Row], lost: list[Row]
) -> None:
    """Draw the lane of one rank; `lost` are its steps that were computed again, before."""
    x = 0.0
    for name, seconds_ in run["phases_s"].items():
        phase = RESTART_PHASES[name]
        if not (rank == 1 and phase == "detect"):
            ax.barh(y, seconds_, 0.62, x, facecolor=t[phase], edgecolor="none")
        x += seconds_
    for start, end in pairwise([row["at_s"] for row in _with_last(steps, lost)]):
        if start >= -BEFORE_S:
            ax.barh(y, max(0.001, end - start - 0.003), 0.62, start, facecolor=t["rest"])
    ends = [(row["at_s"], row["again"]) for row in steps]
    for (start, _), (end, again) in pairwise(ends):
        if start < -BEFORE_S or end > AFTER_S or (start <= 0 < end) or (start >= 0 and end <= x):
            continue
        color, edge = ("red-tint", t["red"]) if again else ("holdfast", "none")
        width = max(0.001, end - start - 0.003)
        ax.barh(y, width, 0.62, start, facecolor=t[color], edgecolor=edge, linewidth=0.7)


def _with_last(steps: list[Row], lost: list[Row]) -> list[Row]:
    """Steps that were lost, after the last one that was not."""
    return [*[row for row in steps if row["at_s"] <= 0][-1:], *lost] if lost else []
