"""Time in a step: what each worker waits for."""

from __future__ import annotations

from typing import Final

from holdfast.dashboard.charts import nice
from holdfast.dashboard.markup import Panel, empty, head
from holdfast.dashboard.view import View
from holdfast.observe.breakdown import part_seconds, waits_s
from holdfast.observe.units import count, duration

TITLE: Final = "Time in a step"
STEPS: Final = 64
"""Of how many steps the times are the mean, at most."""
_MAX_ROWS: Final = 8
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
    """A bar for each worker; of many, for those that wait least, as the others wait for them."""
    rows = view.record.workers(STEPS)
    if not rows:
        return empty(TITLE, "Needs a step.")
    slowest = sorted(rows, key=waits_s)[:_MAX_ROWS]
    shown = sorted(slowest, key=lambda row: row["rank"])
    longest = max(sum(part_seconds(row)) for row in shown) or 1.0
    bars = "".join(_bar(row, place, longest) for place, row in enumerate(shown))
    keys = "".join(
        f'<span><i class="k sq{" hatch" * (color == "--wait")}" style="--c:var({color})"></i>{name}'
        "</span>"
        for name, color, _ in PHASES
    )
    steps = min(STEPS, len(view.record.steps))
    note = f"mean of {count(steps, 'step')}"
    body = f'<div class="hf bd">{bars}<span></span>{_axis(longest)}<span></span></div>'
    return Panel(head=head(TITLE, note, keys), body=body)


def _bar(row: dict[str, float], place: int, longest: float) -> str:
    seconds = part_seconds(row)
    total = sum(seconds) or 1.0
    parts: list[str] = []
    for (name, color, ink), spent in zip(PHASES, seconds, strict=True):
        share = 100 * spent / total
        if share < 0.1:
            continue
        is_wait = color == "--wait"
        label = f"{share:.0f}{'' if parts else ' %'}" if share >= (10 if is_wait else 7) else ""
        parts.append(
            f'<i class="{"hatch" * is_wait}" style="flex:{share:.2f} 0 0;background:var({color});'
            f'color:{ink}" title="{name} {share:.1f} %">{label}</i>'
        )
    worker = f"--w{place}" if place < 4 else "--ink3"
    return (
        f'<span class="name" style="--c:var({worker})"><span><b>rank {row["rank"]:g}</b>'
        f"<small>{row.get('shards', 0):.3g} shards</small></span></span>"
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
