"""Hardware: whether the share of shards matches the speed."""

from __future__ import annotations

from typing import Final

from holdfast.dashboard.markup import PHONE_LACKS, Column, Panel, empty, head, table, text
from holdfast.dashboard.panels.breakdown import STEPS
from holdfast.dashboard.view import View
from holdfast.observe import breakdown
from holdfast.observe.units import MISSING, digits, percent

TITLE: Final = "Hardware"
_MAX_ROWS: Final = 8
_COMPUTE: Final = ("forward", "backward", "collect")
_COLUMNS: Final = (
    Column("Worker"),
    Column("Score", f"num {PHONE_LACKS}"),
    Column("samples/s", "num"),
    Column("Shards", f"num {PHONE_LACKS}"),
    Column("Share of speed"),
)


def panel(view: View) -> Panel:
    """The speed of each worker as it was measured, and its share of the shards."""
    speeds = speeds_of(view)
    if not speeds:
        return empty(TITLE, "Needs a step.")
    rates = {rank: rate for rank, _, rate in speeds}
    shards = {rank: share for rank, share, _ in speeds}
    all_rates, all_shards = sum(rates.values()) or 1.0, sum(shards.values()) or 1.0
    known = devices_by_rank(view)
    rows = []
    for place, (rank, count, rate) in enumerate(speeds[:_MAX_ROWS]):
        device, score = known.get(rank, ("", None))
        color = f"--w{place}" if place < 4 else "--ink3"
        small = f"<small>{text(device)}</small>" if device else ""
        name = f'<span class="name" style="--c:var({color})"><span><b>rank {rank}</b>{small}</span>'
        rows.append(
            [
                f"{name}</span>",
                MISSING if score is None else f"{score:.2f}",
                digits(rate),
                f"{count:.3g}",
                _meter(rate / all_rates, count / all_shards, color),
            ]
        )
    keys = (
        f'<span class="{PHONE_LACKS}"><i class="tk"></i>share of shards</span>'
        f"<span>imbalance <b>{percent(imbalance(view))}</b></span>"
    )
    return Panel(head=head(TITLE, keys=keys), body=table(_COLUMNS, rows, "hw"))


def _meter(speed: float, shards: float, color: str) -> str:
    """A share of all speed as a bar, and the share of all shards as a tick in it."""
    return (
        f'<div class="sh"><div class="meter" style="--c:var({color})">'
        f'<i style="width:{100 * speed:.1f}%"></i>'
        f'<u style="left:{100 * shards:.1f}%"></u></div><span>{percent(speed)}</span></div>'
    )


def speeds_of(view: View) -> list[tuple[int, float, float]]:
    """Rank, shards in a step and samples per second while it computes, of each worker."""
    samples = view.record.steps.columns["samples"]
    rows = view.record.workers(STEPS)
    total = sum(row["shards"] for row in rows)
    found = []
    for row in rows:
        spent = sum(row.get(name, 0.0) for name in _COMPUTE)
        mean = max(samples[-STEPS:], default=0) * row["shards"] / total if total else 0.0
        found.append((int(row["rank"]), row["shards"], mean / spent if spent else 0.0))
    return found


def imbalance(view: View) -> float | None:
    """How much of their time workers wait for the slowest one."""
    return breakdown.imbalance([breakdown.busy_s(row) for row in view.record.workers(STEPS)])


def devices_by_rank(view: View) -> dict[int, tuple[str, float | None]]:
    """Name and score of the device of each rank, as far as hosts have measured them."""
    found: dict[int, tuple[str, float | None]] = {}
    profiled = [event for event in view.record.events if event["event"] == "host-profiled"]
    if len({event.get("host") for event in profiled}) > 1:
        return found  # which host has which ranks is not in the record
    for event in profiled[-1:]:
        names, scores = event.get("devices"), event.get("scores")
        if isinstance(names, str) and isinstance(scores, list):
            pairs = zip(names.split(", "), scores, strict=False)
            found = {rank: (str(name), float(score)) for rank, (name, score) in enumerate(pairs)}
    return found
