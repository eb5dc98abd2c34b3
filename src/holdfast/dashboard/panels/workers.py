"""Workers: whether one is idle, hot, or nearly out of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.dashboard.markup import PHONE_LACKS, Panel, empty, head, text
from holdfast.dashboard.view import View
from holdfast.observe.units import MISSING, digits

TITLE: Final = "Workers"
BARS: Final = 60
"""Of a small chart."""
_MAX_ROWS: Final = 8
_GB: Final = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What was measured of a GPU, or of a host without one.

    Attributes:
        name: For people.
        host: Where it is.
        used: Its utilization over time, 0 to 1; None where it is not known.
        memory, capacity: Bytes over time, and how many there are.
        temperature: Now, degrees Celsius.
    """

    name: str
    host: str
    used: list[float | None]
    memory: list[float | None]
    capacity: float
    temperature: float | None


def panel(view: View) -> Panel:
    """Utilization and memory of each device over time, and now."""
    devices = devices_of(view)
    if not devices:
        return empty(TITLE, "Utilization is shown once the run records it.")
    worst = sorted(devices, key=lambda each: each.used[-1] if each.used[-1] is not None else 2.0)
    shown = [each for each in devices if each in worst[:_MAX_ROWS]]
    names = "".join(
        f'<span class="h {kind}">{name}</span>'
        for name, kind in (
            ("Device", ""), ("Utilization", ""), ("now", "num"), ("Memory", PHONE_LACKS),
            ("GB", f"num {PHONE_LACKS}"), ("°C", f"num {PHONE_LACKS}"),
        )
    )  # fmt: skip
    rows = "".join(_row(each, place) for place, each in enumerate(shown))
    keys = '<span class="dim">dashed: limit</span>'
    body = f'<div class="hf wk">{names}<hr>{rows}</div>'
    return Panel(head=head(TITLE, keys=keys), body=body)


def devices_of(view: View) -> list[Device]:
    """The GPUs of all hosts; of a host without any, the host itself."""
    found = []
    for host, measured in sorted(view.record.system.items()):
        lines = list(measured)
        gpus = lines[-1].get("gpus") or ()
        found += [_gpu(host, lines, int(gpu["index"])) for gpu in gpus]
        if not gpus:
            found.append(_host(host, lines))
    return found


def _gpu(host: str, lines: Sequence[Mapping[str, Any]], index: int) -> Device:
    rows: list[Mapping[str, Any]] = [
        next((gpu for gpu in line.get("gpus", ()) if gpu["index"] == index), {}) for line in lines
    ]
    now = rows[-1]
    return Device(
        name=f"GPU {index}",
        host=f"{host} · {now.get('name', '')}".rstrip(" ·"),
        used=[row.get("utilization") for row in rows],
        memory=[row.get("memory_bytes") for row in rows],
        capacity=float(now.get("memory_total_bytes") or 0),
        temperature=now.get("temperature_c"),
    )


def _host(host: str, lines: Sequence[Mapping[str, Any]]) -> Device:
    return Device(
        name=host or "host",
        host="CPU",
        used=[line.get("cpu") for line in lines],
        memory=[line.get("memory_bytes") for line in lines],
        capacity=float(lines[-1].get("memory_total_bytes") or 0),
        temperature=None,
    )


def _row(device: Device, place: int) -> str:
    color = f"--w{place}" if place < 4 else "--ink3"
    now, memory = device.used[-1], device.memory[-1]
    used = MISSING if now is None else f"{100 * now:.0f} %"
    hot = MISSING if device.temperature is None else f"{device.temperature:.0f}"
    held = MISSING if memory is None else digits(memory / _GB)
    return (
        f'<span class="name" style="--c:var({color})"><span><b>{text(device.name)}</b>'
        f"<small>{text(device.host)}</small></span></span>{_spark(device.used, 1.0, color)}"
        f'<b class="num">{used}</b>'
        f'<div class="{PHONE_LACKS}">{_spark(device.memory, device.capacity, color)}</div>'
        f'<span class="num nowrap {PHONE_LACKS}"><b>{held}</b> '
        f'<span class="dim">of {digits(device.capacity / _GB)}</span></span>'
        f'<span class="num {PHONE_LACKS}">{hot}</span>'
    )


def _spark(values: Sequence[float | None], limit: float, color: str) -> str:
    """A small chart of bars; a gap stays a gap."""
    size = max(1, -(-len(values) // BARS))
    bars = []
    for first in range(0, len(values), size):
        known = [each for each in values[first : first + size] if each is not None]
        if not known or not limit:
            bars.append('<i class="gap"></i>')
        else:
            height = 100 * min(1.0, sum(known) / len(known) / limit)
            bars.append(f'<i style="height:{height:.1f}%"></i>')
    return f'<div class="spark" style="--c:var({color})">{"".join(bars)}</div>'
