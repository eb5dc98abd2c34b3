"""Balance metrics: shards and speed of each worker, from the times of the newest steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from prometheus_client.metrics_core import Metric as Family

from holdfast.record import breakdown
from holdfast.sinks.prometheus import catalogue
from holdfast.sinks.prometheus.instruments import gauge, gauges

STEPS: Final = 20
"""How many of the newest steps count."""


def balance_families(steps: Iterable[Mapping[str, Any]]) -> Iterator[Family]:
    """The metrics of the balance.

    Args:
        steps: The newest lines of steps.
    """
    rows = breakdown.rows(steps, STEPS)
    ranks = [(str(int(row["rank"])),) for row in rows]
    busy_s = [breakdown.busy_s(row) for row in rows]
    speeds = [row["shards"] / busy if busy else 0.0 for row, busy in zip(rows, busy_s, strict=True)]
    shards = [row["shards"] for row in rows]
    yield gauges(catalogue.WORKER_SHARDS, zip(ranks, shards, strict=True))
    fastest = max(speeds, default=0.0)
    relative = [speed / fastest if fastest else None for speed in speeds]
    yield gauges(catalogue.WORKER_SPEED, zip(ranks, relative, strict=True))
    yield gauge(catalogue.IMBALANCE, breakdown.imbalance(busy_s))
