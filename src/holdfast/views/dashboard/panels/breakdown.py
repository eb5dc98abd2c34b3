"""Time in a step: what each worker waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from holdfast.record.breakdown import part_seconds, waits_s
from holdfast.record.units import count, duration
from holdfast.record.views.run_at import WORKER_STEPS
from holdfast.views.dashboard.charts import nice
from holdfast.views.dashboard.markup import Panel, empty, head, text
from holdfast.views.dashboard.run_workers import FEW
from holdfast.views.dashboard.view import View

Row = Mapping[str, float]
"""The mean times of a worker; see `record.breakdown.rows`."""

TITLE: Final = "Time in a step"
MAX_WORST: Final = 5
"""Most workers that are shown, above the mean of all."""
_DARK: Final = "#14211F"
PHASES: Final = (
    ("data", "--data", _DARK),
    ("forward", "--fwd", _DARK),
    ("backward", "--bwd", "#fff"),
    ("reduce", "--reduce", "light-dark(#fff,#14211F)"),
    ("wait for workers", "--wait", "var(--ink)"),
    ("optimizer", "--opt", _DARK),
    ("checkpoint", "--ckpt", _DARK),
)
"""Name of each of `breakdown.PARTS`, color and the color of text on it."""


def panel(view: View) -> Panel:
    """A bar for each worker; of many, for those that wait least, as the others wait for them, and
    for the mean.
    """
    rows = view.worker_times
    if not rows:
        return empty(TITLE, "Needs a step.")
    shown = [(_name(view, row), view.fleet.color(int(row["rank"])), row) for row in _worst(rows)]
    if len(rows) > FEW:
        shown.append(("<b>mean</b>", view.colors.ink2, mean_of(rows)))
    longest = max(sum(part_seconds(row)) for _, _, row in shown) or 1.0
    bars = "".join(_bar(*each, longest) for each in shown)
    keys = "".join(
        f'<span><i class="k sq{" hatch" * (color == "--wait")}" style="--c:var({color})"></i>{name}'
        "</span>"
        for name, color, _ in PHASES
    )
    steps = min(WORKER_STEPS, len(view.record.steps))
    note = f"mean of {count(steps, 'step')}"
    if len(rows) > FEW:
        note += f", the {MAX_WORST} of {count(len(rows), 'worker')} that wait least"
    body = f'<div class="hf bd">{bars}<span></span>{_axis(longest)}<span></span></div>'
    return Panel(head=head(TITLE, note, keys), body=body)


def _worst(rows: Sequence[Row]) -> list[Row]:
    """Few workers as they are; of many, those for which the others wait."""
    if len(rows) <= FEW:
        return list(rows)
    return sorted(sorted(rows, key=waits_s)[:MAX_WORST], key=lambda row: row["rank"])


def mean_of(rows: Sequence[Row]) -> Row:
    """The mean of all workers."""
    return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}


def _name(view: View, row: Row) -> str:
    rank = int(row["rank"])
    more = text(view.fleet.host_of(rank)) or f"{row.get('shards', 0):.3g} shards"
    return f"<b>rank {rank}</b><small>{more}</small>"


def _bar(name: str, color: str, row: Row, longest: float) -> str:
    """A bar as long as the worker's step.

    Args:
        name: Name of the worker, HTML.
        color: Color of the worker.
        row: Its times.
        longest: The longest step of all bars, seconds.
    """
    seconds = part_seconds(row)
    total = sum(seconds) or 1.0
    parts: list[str] = []
    for (phase, fill, ink), spent in zip(PHASES, seconds, strict=True):
        share = 100 * spent / total
        if share < 0.1:
            continue
        is_wait = fill == "--wait"
        label = f"{share:.0f}{'' if parts else ' %'}" if share >= (10 if is_wait else 7) else ""
        parts.append(
            f'<i class="{"hatch" * is_wait}" style="flex:{share:.2f} 0 0;background:var({fill});'
            f'color:{ink}" title="{phase} {share:.1f} %">{label}</i>'
        )
    return (
        f'<span class="name" style="--c:{color}"><span>{name}</span></span>'
        f'<div class="bar" style="width:{100 * total / longest:.1f}%">{"".join(parts)}</div>'
        f'<span class="num">{duration(total)}</span>'
    )


def _axis(longest: float) -> str:
    """The milliseconds below the bars."""
    every = nice(1000 * longest / 5)
    places = [every * number for number in range(6) if every * number < 900 * longest]
    labels = "".join(
        f'<span style="left:{place / 10 / longest:.1f}%">{place:g}{"" if place else " ms"}</span>'
        for place in places
    )
    return f'<div class="ax">{labels}</div>'
