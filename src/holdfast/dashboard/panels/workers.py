"""Workers: whether one is idle, hot, or nearly out of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from holdfast.dashboard.fleet import FEW, MAX_WORST, host_name
from holdfast.dashboard.markup import PHONE_LACKS, Panel, empty, head, text
from holdfast.dashboard.panels.heatmap import heatmap_of
from holdfast.dashboard.view import View
from holdfast.observe.units import MISSING, count, digits

TITLE: Final = "Workers"
BARS: Final = 60
"""Of a small chart."""
MAX_SAMPLES: Final = 4 * BARS
"""Of each host, so many are looked at."""
_GB: Final = 1e9

Sample = Mapping[str, Any]
"""A line of `system.jsonl`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What was measured of a GPU, of a worker on a CPU, or of a host.

    Attributes:
        name: For people.
        more: Where it is, and what.
        color: Of its worker, if it has one of its own.
        at: When, Unix time, seconds.
        used: Its utilization over time, 1 being all of it; None where it is not known.
        limit: The most of that: cores of a worker.
        memory, capacity: Bytes over time, and how many there are.
        temperature: Now, degrees Celsius.
    """

    name: str
    more: str
    color: str
    at: list[float]
    used: list[float | None]
    limit: float = 1.0
    memory: list[float | None]
    capacity: float
    temperature: float | None = None


def panel(view: View) -> Panel:
    """Utilization and memory of each device over time, and now; of many, a heat map of all and the
    worst.
    """
    devices = devices_of(view)
    if not devices:
        return empty(TITLE, "Utilization is shown once the run records it.")
    shown, figure, note = devices, None, ""
    if len(devices) > FEW:
        shown = sorted(devices, key=_newest_use)[:MAX_WORST]
        figure, pooled = heatmap_of(view, [(each.name, each.at, each.used) for each in devices])
        note = f"{count(len(devices), 'device')}; below, the {MAX_WORST} least used"
        if pooled > 1:
            note = f"a row: the least used of {pooled} devices; below, the {MAX_WORST} least used"
    names = "".join(
        f'<span class="h {kind}">{name}</span>'
        for name, kind in (
            ("Device", ""), ("Utilization", ""), ("now", "num"), ("Memory", PHONE_LACKS),
            ("GB", f"num {PHONE_LACKS}"), ("°C", f"num {PHONE_LACKS}"),
        )
    )  # fmt: skip
    rows = "".join(_row(view, each) for each in shown)
    keys = '<span class="dim">dashed: limit</span>'
    body = f'<div class="hf wk">{names}<hr>{rows}</div>'
    return Panel(head=head(TITLE, note, keys), figure=figure, body=body)


def _newest_use(device: Device) -> float:
    return device.used[-1] if device.used[-1] is not None else 2.0


def devices_of(view: View) -> list[Device]:
    """The GPUs of all hosts; of a host without any, its workers; of one of many, the host."""
    found, fleet = [], view.fleet
    begin = view.end - view.span_s if view.span_s is not None else 0.0
    for agent in sorted(view.record.system, key=lambda each: (fleet.hosts.get(each, [0]), each)):
        samples = [
            each for each in view.record.system[agent] if each.get("time_unix_s", 0.0) >= begin
        ]
        if not samples:
            continue
        every = -(-len(samples) // MAX_SAMPLES)
        samples = samples[::-every][::-1]  # with the newest
        ranks = [int(each["rank"]) for each in samples[-1].get("workers", ())]
        if samples[-1].get("gpus"):
            found += _gpus(view, agent, samples, ranks)
        elif ranks and not fleet.is_large:
            found += [_worker(view, samples, rank) for rank in sorted(ranks)]
        else:
            found.append(_host(view, agent, samples))
    return found


def _gpus(view: View, agent: str, samples: Sequence[Sample], ranks: list[int]) -> list[Device]:
    """The GPUs of a host; one with a single worker has its name."""
    series: dict[int, list[Sample]] = {}
    for place, sample in enumerate(samples):
        for gpu in sample.get("gpus", ()):
            rows = series.setdefault(int(gpu["index"]), [{}] * len(samples))
            rows[place] = gpu
    newest = samples[-1]["gpus"]
    found = []
    for place, gpu in enumerate(newest):
        own = [rank for rank in ranks if rank % len(newest) == place]
        rows = series[int(gpu["index"])]
        more = f"{host_name(agent)} · {gpu.get('name', '')}".rstrip(" ·")
        found.append(
            Device(
                name=f"rank {own[0]}" if len(own) == 1 else f"GPU {gpu['index']}",
                more=more,
                color=view.fleet.color(own[0]) if own else view.colors.ink3,
                at=[each["time_unix_s"] for each in samples],
                used=[row.get("utilization") for row in rows],
                memory=[row.get("memory_bytes") for row in rows],
                capacity=float(gpu.get("memory_total_bytes") or 0),
                temperature=gpu.get("temperature_c"),
            )
        )
    return found


def _worker(view: View, samples: Sequence[Sample], rank: int) -> Device:
    """A worker that computes on the CPU."""
    own: list[Sample] = [
        next((each for each in sample.get("workers", ()) if each["rank"] == rank), {})
        for sample in samples
    ]
    used = [each.get("cpu") for each in own]
    return Device(
        name=f"rank {rank}",
        more=f"{view.fleet.host_of(rank)} · CPU cores".lstrip(" ·"),
        color=view.fleet.color(rank),
        at=[each["time_unix_s"] for each in samples],
        used=used,
        limit=float(max(1, ceil(max(each or 0.0 for each in used) - 0.1))),
        memory=[each.get("memory_bytes") for each in own],
        capacity=float(samples[-1].get("memory_total_bytes") or 0),
    )


def _host(view: View, agent: str, samples: Sequence[Sample]) -> Device:
    ranks = view.fleet.hosts.get(agent, [])
    return Device(
        name=host_name(agent) or "host",
        more="CPU",
        color=view.fleet.color(ranks[0]) if ranks else view.colors.ink3,
        at=[each["time_unix_s"] for each in samples],
        used=[each.get("cpu") for each in samples],
        memory=[each.get("memory_bytes") for each in samples],
        capacity=float(samples[-1].get("memory_total_bytes") or 0),
    )


def _row(view: View, device: Device) -> str:
    now, memory = device.used[-1], device.memory[-1]
    used = MISSING if now is None else f"{100 * now:.0f} %"
    hot = MISSING if device.temperature is None else f"{device.temperature:.0f}"
    held = MISSING if memory is None else digits(memory / _GB)
    failed = _shares(device.at, [mark.begin for mark in view.marks])
    return (
        f'<span class="name" style="--c:{device.color}"><span><b>{text(device.name)}</b>'
        f"<small>{text(device.more)}</small></span></span>"
        f"{_spark(device.used, device.limit, device.color, failed)}"
        f'<b class="num">{used}</b><div class="{PHONE_LACKS}">'
        f"{_spark(device.memory, device.capacity, device.color, failed)}</div>"
        f'<span class="num nowrap {PHONE_LACKS}"><b>{held}</b> '
        f'<span class="dim">of {digits(device.capacity / _GB)}</span></span>'
        f'<span class="num {PHONE_LACKS}">{hot}</span>'
    )


def _shares(at: Sequence[float], moments: Sequence[float]) -> list[float]:
    """Where moments are between the first and the last sample, 0 to 1."""
    first, last = at[0], at[-1]
    return [(each - first) / (last - first) for each in moments if first < each < last]


def _spark(
    values: Sequence[float | None], limit: float, color: str, failed: Sequence[float]
) -> str:
    """A small chart of bars with a line for each failure; a gap stays a gap."""
    size = max(1, -(-len(values) // BARS))
    bars = []
    for first in range(0, len(values), size):
        known = [each for each in values[first : first + size] if each is not None]
        if not known or not limit:
            bars.append('<i class="gap"></i>')
        else:
            height = 100 * min(1.0, sum(known) / len(known) / limit)
            bars.append(f'<i style="height:{height:.1f}%"></i>')
    places = dict.fromkeys(round(100 * share) for share in failed)
    bars += [f'<u style="left:{place}%"></u>' for place in places]
    return f'<div class="spark" style="--c:{color}">{"".join(bars)}</div>'
