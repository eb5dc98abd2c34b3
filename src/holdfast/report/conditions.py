"""Conditions in words: where the results are from."""

from __future__ import annotations

from collections.abc import Iterator

from rich.filesize import decimal

from holdfast.report.report import Report


def facts(report: Report) -> Iterator[tuple[str, str]]:
    """What was measured where, as pairs of a name and a text."""
    found = report.conditions
    gpus = f", {', '.join(found.gpus)}" if found.gpus else ", no GPU"
    yield "Machine", f"{found.cores} cores of {found.cpu}, {decimal(found.memory_bytes)}{gpus}"
    yield "Software", ", ".join([found.system, *(f"{n} {v}" for n, v in found.versions.items())])
    yield (
        "Load",
        f"{found.load_before:.1f} before the newest benchmark, {found.load_after:.1f} after",
    )
    yield "Method", "in each round all systems run one after the other; medians, lowest and highest"
    for name, reason in report.absent.items():
        yield "Left out", f"{name}: {reason}"
