"""Figure: what compressed gradients do to learning."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from matplotlib.figure import Figure as Canvas

from holdfast_bench.report.cited import Sentence, number, say
from holdfast_bench.report.drawing import DASHED, area, canvas, foot, keys, log_axis, pt, title
from holdfast_bench.report.figure import Figure
from holdfast_bench.report.results import Results, Row
from holdfast_bench.report.theme import Tokens

NONE: Final = "none"
TOP_K: Final = "topk"
PANEL: Final = 150
HEAD: Final = 78
"""Height above the first panel."""
APART: Final = 214
"""Distance of the panels of two workloads."""


@dataclass(frozen=True, slots=True)
class Look:
    """The look of a method: its text, its color, and its line."""

    text: str
    color: str
    width: float = 1.6
    dash: Any = "-"


LOOKS: Final[Mapping[str, Look]] = {
    "other-seed": Look("none, another seed", "rest", 3.5),
    NONE: Look("none", "ink", 2.4),
    "bf16": Look("bf16", "torchrun"),
    "int8": Look("int8", "torchft"),
    "4bit": Look("4 bits", "ray"),
    TOP_K: Look("top k", "holdfast"),
    "topk-no-feedback": Look("top k without error feedback", "red", dash=DASHED),
    "powersgd": Look("PowerSGD", "restart"),
}
"""In the order in which they are drawn."""


def figure(results: Results) -> Figure | None:
    """From `compression.json`."""
    workloads: dict[str, dict[str, Row]] = {}
    for row in results.rows("compression"):
        workloads.setdefault(row["workload"], {})[row["method"]] = row
    workloads = {name: rows for name, rows in workloads.items() if {NONE, TOP_K} <= rows.keys()}
    if not workloads:
        return None
    return Figure(
        name="compression",
        question="What do compressed gradients do to learning?",
        answer=_answer(workloads),
        caption="Two hosts with a worker each, one run a method, and the same samples for all. The "
        "loss is the mean of 20 steps. Bytes are those that a host sends of gradients and buffers.",
        source="compression",
        command="holdfast bench compression",
        draw=partial(_draw, workloads),
    )


def _answer(workloads: dict[str, dict[str, Row]]) -> Sentence:
    parts = []
    numbers = {}
    for name, rows in workloads.items():
        parts.append(
            f"With {name}, top k sends {{{name}_ratio}} fewer bytes. After the same steps its loss "
            f"is {{{name}_few}}, and {{{name}_none}} without compression; that has "
            f"{{{name}_early}} after the same bytes."
        )
        numbers[f"{name}_ratio"] = number("compression", rows[TOP_K]["ratio"], form="{:.0f} ×")
        for key, value in (
            ("few", rows[TOP_K]["train_loss"]),
            ("none", rows[NONE]["train_loss"]),
            ("early", rows[NONE]["same_bytes_loss"]),
        ):
            numbers[f"{name}_{key}"] = number("compression", value, form="{:.3g}")
    return say(" ".join(parts), **numbers)


def _draw(workloads: dict[str, dict[str, Row]], t: Tokens) -> Canvas:
    fig = canvas(HEAD + APART * len(workloads) - 16)
    drawn = {method for rows in workloads.values() for method in rows}
    items = [(look.color, look.text, None) for method, look in LOOKS.items() if method in drawn]
    keys(fig, t, 44, 18, items[:5])
    keys(fig, t, 44, 38, items[5:])
    for place, (name, rows) in enumerate(workloads.items()):
        top = HEAD + APART * place
        data = rows[NONE]["data"]
        about = name if data == name else f"{name} ({data})"
        title(fig, 44, top - 12, f"{about}: loss by step", t)
        title(fig, 404, top - 12, "by bytes that a host has sent", t)
        steps = rows[NONE]["steps"]
        ax = area(fig, 44, top, 300, PANEL, xlim=(0, steps))
        ax.set_xticks([0, steps / 2, steps], ["step 0", f"{steps / 2:g}", f"{steps}"])
        _lines(ax, rows, 0, t)
        ax = area(fig, 404, top, 296, PANEL, xscale="log")
        _lines(ax, rows, 1, t)
        ticks = _powers([point[1] for row in rows.values() for point in row["curve"]])
        log_axis(ax.xaxis, ticks, [_size(each) for each in ticks])
    foot(fig, 44, "Training loss. Left: linear axis of steps. Right: logarithmic axis of bytes.", t)
    return fig


def _lines(ax: Any, rows: dict[str, Row], column: int, t: Tokens) -> None:
    """The loss of each method over a column of its curve."""
    for method, look in LOOKS.items():
        if method not in rows:
            continue
        curve = rows[method]["curve"]
        across = [point[column] for point in curve]
        style = {"color": t[look.color], "linewidth": pt(look.width), "linestyle": look.dash}
        ax.plot(across, [point[2] for point in curve], **style)


def _powers(mb: Sequence[float]) -> list[float]:
    """Powers of ten within a range."""
    first, last = math.ceil(math.log10(min(mb))), math.floor(math.log10(max(mb)))
    return [10.0**power for power in range(first, last + 1)]


def _size(mb: float) -> str:
    for unit, size_mb in (("GB", 1e3), ("MB", 1.0)):
        if mb >= size_mb:
            return f"{mb / size_mb:g} {unit}"
    return f"{1e3 * mb:g} KB"
