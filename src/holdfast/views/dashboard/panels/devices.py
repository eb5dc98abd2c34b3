"""Devices of workers: whether one is idle, hot, or nearly out of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from holdfast.record.units import MISSING, count, digits
from holdfast.views.dashboard.charts import HEIGHT, Chart
from holdfast.views.dashboard.markup import PHONE_LACKS, Panel, empty, head, text
from holdfast.views.dashboard.run_workers import FEW, MAX_WORST, host_name
from holdfast.views.dashboard.theme import mixed
from holdfast.views.dashboard.view import View

TITLE: Final = "Workers"
BARS: Final = 60
"""Bars of a small chart."""
MAX_SAMPLES: Final = 4 * BARS
"""Most samples of a host that are looked at."""
HOLD_S: Final = 8.0
"""Until when a sample counts without another."""
_GB: Final = 1e9

Sample = Mapping[str, Any]
"""A line of `system.jsonl`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUse:
    """Measurements of a GPU, of a worker on a CPU, or of a host.

    Attributes:
        name: For people.
        more: Its host, and its kind.
        color: Color of its worker, if it has one of its own.
        at: Times, Unix time, seconds.
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
    shown = devices
    figure = None
    note = ""
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


def _newest_use(device: DeviceUse) -> float:
    return device.used[-1] if device.used[-1] is not None else 2.0


def devices_of(view: View) -> list[DeviceUse]:
    """The GPUs of all hosts; of a host without any, its workers; of one of many, the host."""
    found = list[DeviceUse]()
    fleet = view.fleet
    for agent, samples in _samples(view).items():
        ranks = [int(each["rank"]) for each in samples[-1].get("workers", ())]
        ranks = [rank for rank in ranks if fleet.agents.get(rank) == agent]  # others have left
        if samples[-1].get("gpus"):
            found += _gpus(view, agent, samples, ranks)
        elif not fleet.is_large and samples[-1].get("workers"):
            found += [_worker(view, samples, rank) for rank in sorted(ranks)]
        else:
            found.append(_host(view, agent, samples))
    return found


def _samples(view: View) -> dict[str, list[Sample]]:
    """The samples of each host, by its newest agent, in the order of ranks: an agent continues
    those of one before that had the same host's name.
    """
    hosts: dict[str, list[list[Sample]]] = {}
    for agent, measured in view.record.system.items():
        own = [each for each in measured if each["time_unix_s"] >= view.begin]
        before = hosts.setdefault(host_name(agent), [])
        if before and own and own[0]["time_unix_s"] > before[-1][-1]["time_unix_s"]:
            before[-1] = [*before[-1], *own]
        elif own:
            before.append(own)
    found: dict[str, list[Sample]] = {}
    for samples in (each for its in hosts.values() for each in its):
        every = -(-len(samples) // MAX_SAMPLES)
        found[str(samples[-1]["host"])] = samples[::-every][::-1]  # with the newest
    order = {agent: ranks[0] for agent, ranks in view.fleet.hosts.items()}
    return dict(sorted(found.items(), key=lambda item: (order.get(item[0], 0), item[0])))


def _gpus(view: View, agent: str, samples: Sequence[Sample], ranks: list[int]) -> list[DeviceUse]:
    """The GPUs of a host; one with a single worker has its name."""
    series: dict[int, list[Sample]] = {}
    for place, sample in enumerate(samples):
        for gpu in sample.get("gpus", ()):
            rows = series.setdefault(int(gpu["index"]), [{}] * len(samples))
            rows[place] = gpu
    newest = samples[-1]["gpus"]
    found = []
    for place, gpu in enumerate(newest):
        own = sorted(ranks)[place :: len(newest)]
        rows = series[int(gpu["index"])]
        more = f"{host_name(agent)} · {gpu.get('name', '')}".rstrip(" ·")
        found.append(
            DeviceUse(
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


def _worker(view: View, samples: Sequence[Sample], rank: int) -> DeviceUse:
    """A worker that computes on the CPU."""
    own: list[Sample] = [
        next((each for each in sample.get("workers", ()) if each["rank"] == rank), {})
        for sample in samples
    ]
    used = [each.get("cpu") for each in own]
    return DeviceUse(
        name=f"rank {rank}",
        more=f"{view.fleet.host_of(rank)} · CPU cores".lstrip(" ·"),
        color=view.fleet.color(rank),
        at=[each["time_unix_s"] for each in samples],
        used=used,
        limit=float(max(1, ceil(max(each or 0.0 for each in used) - 0.1))),
        memory=[each.get("memory_bytes") for each in own],
        capacity=float(samples[-1].get("memory_total_bytes") or 0),
    )


def _host(view: View, agent: str, samples: Sequence[Sample]) -> DeviceUse:
    ranks = view.fleet.hosts.get(agent, [])
    return DeviceUse(
        name=host_name(agent) or "host",
        more="CPU",
        color=view.fleet.color(ranks[0]) if ranks else view.colors.ink3,
        at=[each["time_unix_s"] for each in samples],
        used=[each.get("cpu") for each in samples],
        memory=[each.get("memory_bytes") for each in samples],
        capacity=float(samples[-1].get("memory_total_bytes") or 0),
    )


def _row(view: View, device: DeviceUse) -> str:
    now = device.used[-1]
    memory = device.memory[-1]
    used = MISSING if now is None else f"{100 * now:.0f} %"
    hot = MISSING if device.temperature is None else f"{device.temperature:.0f}"
    held = MISSING if memory is None else digits(memory / _GB)
    sparks = [
        _spark(view, device, values, limit)
        for values, limit in ((device.used, device.limit), (device.memory, device.capacity))
    ]
    return (
        f'<span class="name" style="--c:{device.color}"><span><b>{text(device.name)}</b>'
        f"<small>{text(device.more)}</small></span></span>"
        f'{sparks[0]}<b class="num">{used}</b><div class="{PHONE_LACKS}">{sparks[1]}</div>'
        f'<span class="num nowrap {PHONE_LACKS}"><b>{held}</b> '
        f'<span class="dim">of {digits(device.capacity / _GB)}</span></span>'
        f'<span class="num {PHONE_LACKS}">{hot}</span>'
    )


def _spark(view: View, device: DeviceUse, values: Sequence[float | None], limit: float) -> str:
    """A small chart of bars over the time that is shown, with a line for each failure; a gap stays
    a gap.
    """
    span = (view.drawn_until - view.begin) or 1.0

    def place_of(at: float) -> float:
        return (at - view.begin) / span

    columns: list[list[float]] = [[] for _ in range(BARS)]
    held = 0
    for at, value in zip(device.at, values, strict=True):
        place = max(0, min(BARS - 1, int(BARS * place_of(at))))
        for between in range(held + 1, place):  # a sample holds until the next, if that is near
            if place - held <= HOLD_S * BARS / span and value is not None:
                columns[between].append(value)
        held = place
        if value is not None:
            columns[place].append(value)
    bars = []
    for known in columns:
        height = 100 * min(1.0, sum(known) / len(known) / limit) if known and limit else None
        look = ' class="gap"' if height is None else f' style="height:{height:.1f}%"'
        bars.append(f"<i{look}></i>")
    places = [place_of(mark.begin) for mark in view.marks]
    shown = dict.fromkeys(round(100 * place) for place in places if 0 < place < 1)
    bars += [f'<u style="left:{place}%"></u>' for place in shown]
    return f'<div class="spark" style="--c:{device.color}">{"".join(bars)}</div>'


ROWS: Final = 64
"""Most rows of a heat map; of more devices, neighbors share one."""
COLUMNS: Final = 120
_NAMES: Final = 5
"""So many rows have their name next to them, at most."""
_LEFT: Final = 84

Numbers = npt.NDArray[np.float64]
Measured = tuple[str, Sequence[float], Sequence[float | None]]
"""The name of a device, when it was sampled, Unix time, seconds, and its utilization, 0 to 1."""


def heatmap_of(view: View, devices: Sequence[Measured]) -> tuple[go.Figure, int]:
    """The heat map, and how many devices share a row: its color is that of the least used."""
    pooled = -(-len(devices) // ROWS)
    first = max(view.begin, min(at[0] for _, at, _ in devices))
    edges = np.linspace(first, max(view.drawn_until, first + 1e-3), COLUMNS + 1)
    rows = _binned(edges, devices)
    pools = [rows[place : place + pooled] for place in range(0, len(rows), pooled)]
    values = np.array([np.fmin.reduce(pool, axis=0) for pool in pools])
    chart = Chart(view, height=HEIGHT, left=_LEFT)
    names = [devices[place * pooled][0] for place in range(len(pools))]
    every = -(-len(names) // _NAMES)
    chart.layout["yaxis"] |= {
        "range": [len(names) - 0.5, -0.5], "showgrid": False, "ticksuffix": "",
        "tickvals": list(range(0, len(names), every)),
        "ticktext": [f"{name}  " for name in names[::every]],
    }  # fmt: skip
    colors = view.colors
    middle = mixed(colors.inset, colors.kelp_fill, 0.4)
    chart.traces.append(
        {
            "type": "heatmap", "x": view.x(((edges[1:] + edges[:-1]) / 2).tolist()),
            "z": np.round(100 * values), "zmin": 0, "zmax": 100, "showscale": False,
            "colorscale": [[0, colors.inset], [0.5, middle], [1, colors.kelp_fill]],
            "customdata": [[name] * COLUMNS for name in names],
            "hovertemplate": "%{customdata}: %{z} %<extra></extra>", "hoverongaps": False,
        }
    )  # fmt: skip
    chart.layout["hovermode"] = "closest"
    chart.add_marks()
    return chart.figure(), pooled


def _binned(edges: Numbers, devices: Sequence[Measured]) -> Numbers:
    """The mean of what was measured of each device between two edges; nan where nothing was."""
    columns = len(edges) - 1
    values = np.concatenate([np.array(used, dtype=float) for _, _, used in devices])
    at = np.concatenate([np.array(at) for _, at, _ in devices])
    rows = np.repeat(np.arange(len(devices)), [len(used) for _, _, used in devices])
    places = np.minimum(np.searchsorted(edges, at, side="right") - 1, columns - 1)
    inside = ~np.isnan(values) & (places >= 0)
    cells = rows[inside] * columns + places[inside]
    counts = np.bincount(cells, minlength=len(devices) * columns)
    sums = np.bincount(cells, values[inside], minlength=len(devices) * columns)
    mean = np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)
    means: Numbers = mean.reshape(len(devices), columns)
    usual_s = float(np.median(np.diff(devices[0][1]))) if len(devices[0][1]) > 1 else 0.0
    for _ in range(int(usual_s / (edges[1] - edges[0]))):  # a sample holds until the next
        before = np.roll(means, 1, axis=1)
        before[:, 0] = np.nan
        means = np.where(np.isnan(means), before, means)
    return means
