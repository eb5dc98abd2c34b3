"""Breakdown: what the workers of a run spend their time on, from its metrics and events."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any


def rows(entries: Iterable[Mapping[str, Any]], steps: int) -> list[dict[str, float]]:
    """The mean times of each worker in its last steps: its rank, its shards, seconds by phase.

    Args:
        entries: The lines of `metrics.jsonl`.
        steps: How many steps at most. Those before the members changed do not count.
    """
    newest: deque[Mapping[str, list[float]]] = deque(maxlen=steps)
    for entry in entries:
        workers = entry.get("workers")
        if not workers:
            continue
        if newest and newest[-1]["rank"] != workers["rank"]:
            newest.clear()
        newest.append(workers)
    if not newest:
        return []
    columns = list(dict.fromkeys(name for workers in newest for name in workers if name != "rank"))
    ranks = newest[-1]["rank"]
    nothing = [0.0] * len(ranks)
    return [
        {
            "rank": rank,
            **{
                name: sum(workers.get(name, nothing)[place] for workers in newest) / len(newest)
                for name in columns
            },
        }
        for place, rank in enumerate(ranks)
    ]


def bottleneck(events: Iterable[Mapping[str, Any]]) -> str | None:
    """What limited the run when that was last written down; None if it never was.

    Args:
        events: The lines of `events.jsonl`.
    """
    found = [event for event in events if event.get("event") == "bottleneck-found"]
    return f"{found[-1]['bottleneck']}: {found[-1]['text']}" if found else None
