"""Catalogue: all metrics that a run and its hosts have for Prometheus, read from its file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueMetric:
    """A metric of the catalogue.

    Attributes:
        name: With the prefix of all.
        kind: Its type.
        text: Help text, a sentence.
        labels: The names of its labels.
        values: The values of its only label, if they are known before they occur.
        buckets: The upper bounds of a histogram, except for the last, which has none.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    labels: Sequence[str] = ()
    values: Sequence[str] = ()
    buckets: Sequence[float] = ()


GROUPS: Final[Mapping[str, Mapping[str, CatalogueMetric]]] = {
    group: {name: CatalogueMetric(name=f"holdfast_{name}", **parts) for name, parts in of.items()}
    for group, of in yaml.safe_load(
        Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    ).items()
}
"""All metrics, by their names without the prefix. A joined host has those of its GPUs and of
itself.
"""
METRICS: Final = {name: each for group in GROUPS.values() for name, each in group.items()}


def table() -> Iterator[str]:
    """The catalogue in Markdown, a table a group, line by line."""
    for group, metrics in GROUPS.items():
        yield from (f"### {group}", "", "| metric | type | labels | |", "|---|---|---|---|")
        for metric in metrics.values():
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            yield f"| `{metric.name}` | {metric.kind} | {labels} | {metric.text} |"
        yield ""
