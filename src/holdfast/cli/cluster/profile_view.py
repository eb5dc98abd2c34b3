"""Shows profiles: tables in a terminal, a line per device, memory, disk and link in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rich.console import Console
from rich.filesize import decimal as in_words
from rich.table import Table

from holdfast.hardware.profile import Device, Disk, GpuState, HostLink, HostProfile, Precision
from holdfast.hardware.profile_file import Profiles

UNKNOWN: Final = "-"
PRECISIONS: Final[tuple[Precision, ...]] = ("fp32", "bf16", "fp16")
_UNRELIABLE: Final = " (not reliable)"
_COLUMNS = ("", "device", "score", "relative", *PRECISIONS, "memory", "copies")
_LINK_COLUMNS = ("link from", "to", "latency", "bandwidth")


def show(profiles: Profiles) -> None:
    """Print profiles on standard output; lines about one of several hosts begin with its name."""
    several = len(profiles.hosts) > 1
    slowest = _slowest(profiles)
    of_hosts = {f"{name} " if several else "": host for name, host in profiles.hosts.items()}
    devices = [each for prefix, host in of_hosts.items() for each in _labelled(prefix, host)]
    links = [_link_cells(each) for each in profiles.links]
    if not several:
        print(*(f"host {name}" for name in profiles.hosts))
    if sys.stdout.isatty():
        rows = [(label, *_cells(device, slowest)) for label, device in devices]
        Console().print(_table(_COLUMNS, rows))
    else:
        print(*_lines(devices, slowest), sep="\n")
    for prefix, host in of_hosts.items():
        for line in _rest(prefix, host):
            print(line)
    if links and sys.stdout.isatty():
        Console().print(_table(_LINK_COLUMNS, links))
    elif links:
        print(*(f"link: {source} to {', '.join(rest)}" for source, *rest in links), sep="\n")


def _slowest(profiles: Profiles) -> float:
    """The lowest score of what workers would compute on; 0 if none is known."""
    scores = [each.score for host in profiles.hosts.values() for each in host.used_by("auto")]
    return min((each for each in scores if each), default=0.0)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, no_wrap=name != "device", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _lines(devices: Iterable[tuple[str, Device]], slowest: float) -> Iterator[str]:
    for label, device in devices:
        name, *cells = _cells(device, slowest)
        known = [
            f"{column} {cell}"
            for column, cell in zip(_COLUMNS[2:], cells, strict=True)
            if cell != UNKNOWN
        ]
        yield f"{label}: {', '.join([name, *known])}"


def _labelled(prefix: str, host: HostProfile) -> Iterator[tuple[str, Device]]:
    gpus = [each for each in host.devices if each.kind == "gpu"]
    for number, device in enumerate(gpus):
        yield f"{prefix}gpu {number}", device
    for device in host.devices:
        if device.kind == "cpu":
            yield f"{prefix}cpu", device


def _cells(device: Device, slowest: float) -> list[str]:
    cores = f", {device.cores} cores" if device.cores else ""
    mark = " (estimate)" if device.source == "estimated" and device.score else ""
    rates = [_tflops(device, each) for each in PRECISIONS]
    return [
        f"{device.name}{cores}",
        f"{_rounded(device.score)}{mark}" if device.score else UNKNOWN,
        f"{device.score / slowest:.1f}x" if device.score and slowest else UNKNOWN,
        *rates,
        _size(device.memory_bytes),
        _copies(device),
    ]


def _tflops(device: Device, precision: Precision) -> str:
    if precision in device.unreliable:
        return f"{_rounded(device.unreliable[precision])}{_UNRELIABLE}"
    return _rounded(device.tflops.get(precision))


def _copies(device: Device) -> str:
    if "copies" in device.unreliable:
        return f"{_rate(device.unreliable['copies'])}{_UNRELIABLE}"
    return _rate(device.memory_bytes_per_s)


def _state(state: GpuState) -> str:
    """State that a GPU reports."""
    limit = "" if state.power_limit_w is None else f" of {state.power_limit_w:.0f}"
    most = "" if state.max_clock_mhz is None else f" of {state.max_clock_mhz:.0f}"
    busy = None if state.utilization is None else 100 * state.utilization
    reported = (
        (state.temperature_c, " °C"),
        (state.power_w, f"{limit} W"),
        (busy, " % busy"),
        (state.clock_mhz, f"{most} MHz"),
    )
    parts = [f"{value:.0f}{unit}" for value, unit in reported if value is not None]
    slowed = [f"slowed by {', '.join(state.slowed_by)}"] if state.slowed_by else []
    return ", ".join([*parts, *slowed]) or "reports nothing of itself"


def _rest(prefix: str, host: HostProfile) -> Iterator[str]:
    """The lines below the devices."""
    for label, device in _labelled(prefix, host):
        if device.state is not None:
            yield f"{label}: {_state(device.state)}"
        if device.unreliable:
            yield (
                f"{label}: rounds of {', '.join(device.unreliable)} do not agree, so nothing uses "
                "these rates; measure again when no other process uses the host"
            )
    if host.memory is not None:
        free = _size(host.memory.available_bytes)
        yield f"{prefix}ram: {_size(host.memory.total_bytes)}, {free} available"
    if host.disk is not None:
        yield f"{prefix}{_disk(host.disk)}"
    for note in host.notes:
        yield f"{prefix}{note}"


def _disk(disk: Disk) -> str:
    cached = "" if disk.direct else "; through the page cache, which this file system needs"
    return (
        f"disk: {disk.path}, writes {_rate(disk.write_bytes_per_s)}, "
        f"reads {_rate(disk.read_bytes_per_s)}, fsync {1e3 * disk.fsync_s:.2f} ms "
        f"(99 %: {1e3 * disk.fsync_p99_s:.2f} ms){cached}"
    )


def _link_cells(link: HostLink) -> tuple[str, str, str, str]:
    rate = f"{8e-9 * link.bytes_per_s:.2f} Gbit/s"
    return link.source, link.target, f"{1e3 * link.latency_s:.2f} ms", rate


def _size(size_bytes: int | None) -> str:
    return UNKNOWN if size_bytes is None else in_words(size_bytes)


def _rate(bytes_per_s: float | None) -> str:
    return UNKNOWN if bytes_per_s is None else f"{in_words(int(bytes_per_s))}/s"


def _rounded(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.3g}"
