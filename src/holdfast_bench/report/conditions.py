"""Conditions in words: where the results are from."""

from __future__ import annotations

from collections.abc import Iterator

from rich.filesize import decimal

from holdfast_bench.report.report import Report
from holdfast_bench.results.conditions import Conditions


def facts(report: Report) -> Iterator[tuple[str, str]]:
    """What was measured where, as pairs of a name and a text; more of a kind if results differ."""
    every = report.conditions
    for text in dict.fromkeys(map(_machine, every)):
        yield "Machine", text
    for text in dict.fromkeys(map(_software, every)):
        yield "Software", text
    loads = [each.load_before for each in every]
    yield "Load", f"{min(loads):.1f} to {max(loads):.1f} before a benchmark, of the last minute"
    first = min(each.started for each in every)
    last = max(each.started for each in every)
    yield "Measured", f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC"
    yield "Method", "in each round all systems run one after the other; medians, lowest and highest"
    for name, reason in report.absent.items():
        yield "Left out", f"{name}: {reason}"


def _machine(found: Conditions) -> str:
    gpus = ", ".join(found.gpus) or "no GPU"
    return f"{found.cores} cores of {found.cpu}, {decimal(found.memory_bytes)}, {gpus}"


def _software(found: Conditions) -> str:
    versions = (f"{name} {version}" for name, version in found.versions.items())
    return ", ".join([found.system, *versions])
