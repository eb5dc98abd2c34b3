"""Breakdown: what the workers of a run spend their time on, from its metrics and events."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import isnan
from typing import Any, Final

_OF_SHARDS: Final = ("data", "forward", "backward", "collect")
"""The phases in which a worker computes its shards."""
PARTS: Final = {
    "data": ("data",),
    "forward": ("forward",),
    "backward": ("backward",),
    "reduce": ("collect", "reduce"),
    "wait": ("wait", "wait_reduce"),
    "optimizer": ("optimizer",),
    "checkpoint": ("checkpoint", "evaluate"),
}
"""The parts of a step that views show, and the phases that each consists of."""
OTHER: Final = "other"
"""The part of a step that no phase is measured for."""


def _whole(workers: Any) -> Mapping[str, list[float]] | None:
    """The times of workers in a line, if they are columns of one length; a file may be damaged."""
    if not (isinstance(workers, dict) and isinstance(workers.get("rank"), list)):
        return None
    count = len(workers["rank"])
    is_whole = all(isinstance(each, list) and len(each) == count for each in workers.values())
    return workers if count and is_whole else None


def rows(entries: Iterable[Mapping[str, Any]], steps: int) -> list[dict[str, float]]:
    """The mean times of each worker in its last steps: its rank, its shards, seconds by phase.

    Args:
        entries: The lines of `metrics.jsonl`.
        steps: Most steps that count; those before the members changed do not.
    """
    newest: deque[Mapping[str, list[float]]] = deque(maxlen=steps)
    for entry in entries:
        workers = _whole(entry.get("workers"))
        if workers is None:
            continue
        if newest and newest[-1]["rank"] != workers["rank"]:
            newest.clear()
        newest.append(workers)
    if not newest:
        return []
    columns = list(dict.fromkeys(name for workers in newest for name in workers if name != "rank"))
    ranks = newest[-1]["rank"]
    nothing = [0.0] * len(ranks)
    means = []  # a column each: there may be a thousand ranks
    for name in columns:
        totals = map(sum, zip(*(workers.get(name, nothing) for workers in newest), strict=True))
        means.append([total / len(newest) for total in totals])
    names = ["rank", *columns]
    return [dict(zip(names, row, strict=True)) for row in zip(ranks, *means, strict=True)]


def busy_s(row: Mapping[str, float]) -> float:
    """Time that a worker computes its shards in a step, seconds.

    Args:
        row: A row of `rows`.
    """
    return sum(row.get(phase, 0.0) for phase in _OF_SHARDS)


def busy_of(workers: Mapping[str, Sequence[float]]) -> list[float]:
    """Time that each worker computes its shards in a step, seconds.

    Args:
        workers: Times of workers in a line of `metrics.jsonl`.
    """
    columns = [workers[phase] for phase in _OF_SHARDS if phase in workers]
    return list(map(sum, zip(*columns, strict=True)))


def part_seconds(row: Mapping[str, float]) -> list[float]:
    """Time that each of `PARTS` takes a worker in a step, seconds.

    Args:
        row: A row of `rows`.
    """
    return [sum(row.get(phase, 0.0) for phase in phases) for phases in PARTS.values()]


def shares_of_step(
    rows: Sequence[Mapping[str, float]], seconds: Sequence[float]
) -> dict[str, float]:
    """The share of each part in a step, the mean of all workers; their sum is 1, or they are empty
    without a measured step.

    Args:
        rows: Rows of `rows`.
        seconds: Times of the same steps, nan where that is not known.
    """
    measured = [each for each in seconds if not isnan(each)]
    if not rows or not measured:
        return {}
    means = [sum(part) / len(rows) for part in zip(*map(part_seconds, rows), strict=True)]
    total = max(sum(means), sum(measured) / len(measured))
    if not total:
        return {}
    shares = {name: mean / total for name, mean in zip(PARTS, means, strict=True)}
    return {**shares, OTHER: max(0.0, 1 - sum(shares.values()))}


def waits_s(row: Mapping[str, float]) -> float:
    """Time that a worker waits for others in a step, seconds.

    Args:
        row: A row of `rows`.
    """
    return sum(row.get(phase, 0.0) for phase in PARTS["wait"])


def imbalance(busy: Collection[float]) -> float | None:
    """Share of time that workers wait for the slowest one, 1 - mean / max; None if none works.

    Args:
        busy: Time that each computes its shards, seconds.
    """
    slowest_s = max(busy, default=0.0)
    return 1 - sum(busy) / len(busy) / slowest_s if slowest_s else None


def bottleneck(events: Iterable[Mapping[str, Any]]) -> str | None:
    """Limit of the run when that was last written down, in words; None if it never was.

    Args:
        events: The lines of `events.jsonl`.
    """
    found = [event for event in events if event.get("event") == "bottleneck-found"]
    return f"{found[-1]['bottleneck']}: {found[-1]['text']}" if found else None


def caps(events: Iterable[Mapping[str, Any]]) -> dict[int, int]:
    """The most shards of a step of each rank that has run out of memory on its host.

    Args:
        events: The lines of `events.jsonl`.
    """
    found: dict[int, tuple[str | None, int]] = {}
    for event in events:
        match event:
            case {"event": "run-started"}:
                found.clear()
            case {"event": "worker-out-of-memory", "rank": int(rank), "cap": int(cap)}:
                found[rank] = (event.get("host"), cap)
            case {"event": "worker-started", "rank": int(rank)} if rank in found:
                if event.get("host") != found[rank][0]:
                    del found[rank]
    return {rank: cap for rank, (_, cap) in sorted(found.items())}
