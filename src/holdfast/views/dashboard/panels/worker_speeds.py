"""Worker speeds: whether the share of shards matches the speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Final

from holdfast.record import breakdown
from holdfast.record.run_record import Event
from holdfast.record.units import MISSING, count, digits, percent
from holdfast.record.views.run_at import WORKER_STEPS
from holdfast.views.dashboard.markup import (
    PHONE_LACKS,
    Panel,
    TableColumn,
    empty,
    head,
    table,
    text,
)
from holdfast.views.dashboard.run_workers import FEW
from holdfast.views.dashboard.view import View

TITLE: Final = "Hardware"
_LONGEST: Final = 80
"""Length of the longest bar, percent of its space: a tick may be right of it."""
_COMPUTE: Final = ("forward", "backward", "collect")
_SCORED: Final = (TableColumn("Score", f"num {PHONE_LACKS}"), TableColumn("TFLOPS", "num"))
_MOVED: Final = (TableColumn("GB/s", f"num {PHONE_LACKS}"),)
_RATED: Final = (
    TableColumn("samples/s", "num"),
    TableColumn("Shards", f"num {PHONE_LACKS}"),
    TableColumn("Share of speed", "share"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeDevice:
    """Device of a worker, as far as it is known.

    Attributes:
        name: Name by its maker.
        tflops: In matrix products.
        bytes_per_s: In a copy within its memory.
    """

    name: str = ""
    tflops: float | None = None
    bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpeed:
    """Speed of a worker.

    Attributes:
        rank: Its rank.
        shards: In a step.
        rate: Samples per second while it computes.
        share, share_of_shards: Parts of those of all workers.
    """

    rank: int
    shards: float
    rate: float
    share: float
    share_of_shards: float


def panel(view: View) -> Panel:
    """The speed of each worker as it was measured, and its share of the shards; of many workers,
    of those for which the two differ most.
    """
    speeds = speeds_of(view)
    if not speeds:
        return empty(TITLE, "Needs a step.")
    shown = speeds
    if len(speeds) > FEW:
        worst = sorted(speeds, key=lambda each: -abs(each.share - each.share_of_shards))[:FEW]
        shown = sorted(worst, key=lambda each: each.rank)
    known = devices_by_rank(view)
    devices = [known.get(each.rank, ComputeDevice()) for each in shown]
    best = max((each.tflops or 0.0 for each in known.values()), default=0.0)
    largest = max(max(each.share, each.share_of_shards) for each in shown) or 1.0
    is_scored = best > 0
    is_moved = any(each.bytes_per_s for each in devices)
    columns = (TableColumn("Worker"), *_SCORED * is_scored, *_MOVED * is_moved, *_RATED)
    rows = []
    for each, device in zip(shown, devices, strict=True):
        color = view.fleet.color(each.rank)
        score = f"{device.tflops / best:.2f}" if device.tflops is not None and best else MISSING
        scored = [score, digits(device.tflops)]
        moved = [digits(device.bytes_per_s / 1e9 if device.bytes_per_s else None)]
        rows.append(
            [
                _name(view, each.rank, device, color),
                *scored * is_scored,
                *moved * is_moved,
                digits(each.rate),
                f"{each.shards:.3g}",
                _meter(each, largest, color),
            ]
        )
    note = f"{FEW} of {count(len(speeds), 'worker')}" if len(speeds) > FEW else ""
    keys = (
        f'<span class="{PHONE_LACKS}"><i class="tk"></i>share of shards</span>'
        f"<span>imbalance <b>{percent(imbalance(view))}</b></span>"
    )
    return Panel(head=head(TITLE, note, keys), body=table(columns, rows, "hw"))


def _name(view: View, rank: int, device: ComputeDevice, color: str) -> str:
    more = " · ".join(each for each in (view.fleet.host_of(rank), device.name) if each)
    small = f'<small title="{text(more)}">{text(more)}</small>' if more else ""
    return f'<span class="name" style="--c:{color}"><span><b>rank {rank}</b>{small}</span></span>'


def _meter(speed: WorkerSpeed, largest: float, color: str) -> str:
    """A share of all speed as a bar, and the share of all shards as a tick in it."""
    width, left = (_LONGEST * each / largest for each in (speed.share, speed.share_of_shards))
    return (
        f'<div class="sh"><div class="meter" style="--c:{color}"><i style="width:{width:.1f}%"></i>'
        f'<u style="left:{left:.1f}%"></u></div><span>{percent(speed.share)}</span></div>'
    )


def speeds_of(view: View) -> list[WorkerSpeed]:
    """The speed of each worker."""
    rows = view.worker_times
    samples = max(view.record.steps.columns["samples"][-WORKER_STEPS:], default=0)
    shards = [row["shards"] for row in rows]
    total = sum(shards) or 1.0
    rates = []
    for row in rows:
        spent = sum(row.get(name, 0.0) for name in _COMPUTE)
        rates.append(samples * row["shards"] / total / spent if spent else 0.0)
    whole = sum(rates) or 1.0
    return [
        WorkerSpeed(
            rank=int(row["rank"]),
            shards=own,
            rate=rate,
            share=rate / whole,
            share_of_shards=own / total,
        )
        for row, own, rate in zip(rows, shards, rates, strict=True)
    ]


def imbalance(view: View) -> float | None:
    """Share of their time that workers wait for the slowest one."""
    return breakdown.imbalance([breakdown.busy_s(row) for row in view.worker_times])


def devices_by_rank(view: View) -> dict[int, ComputeDevice]:
    """The device of each rank, as far as its host has measured it, or names it in its samples."""
    fleet = view.fleet
    found = dict[int, ComputeDevice]()
    profiled = {
        str(event.get("host", "")): event
        for event in view.record.events
        if event["event"] == "host-profiled"
    }
    for agent, ranks in fleet.hosts.items():
        event = profiled.get(agent, None if fleet.has_hosts else profiled.get(""))
        devices = _measured(event) if event else _named(view, agent)
        if devices:  # workers take them by turns
            found |= dict(zip(sorted(ranks), cycle(devices), strict=False))
    return found


def _measured(event: Event) -> list[ComputeDevice]:
    names = event.get("devices")
    scores = event.get("scores")
    if not isinstance(names, str) or not isinstance(scores, list):
        return []
    rates: Sequence[Any] = event.get("bytes_per_s") or [None] * len(scores)
    return [
        ComputeDevice(name=name, tflops=float(score), bytes_per_s=rate)
        for name, score, rate in zip(names.split(", "), scores, rates, strict=False)
    ]


def _named(view: View, agent: str) -> list[ComputeDevice]:
    measured = view.record.system.get(agent)
    gpus: Sequence[Mapping[str, Any]] = measured[-1].get("gpus", ()) if measured else ()
    return [ComputeDevice(name=str(each.get("name", ""))) for each in gpus]
