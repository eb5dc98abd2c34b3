"""Lanes: when each worker of a run was there, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.dashboard.view import View
from holdfast.observe.record.moments import is_failure


@dataclass(slots=True)
class Lane:
    """The time of one rank.

    Attributes:
        rank: Which.
        host: Where it runs now; empty if that is not known.
        spans: From when to when its workers ran, Unix time, seconds.
        failed: When they failed.
    """

    rank: int
    host: str = ""
    spans: list[tuple[float, float]] = field(default_factory=list)
    failed: list[float] = field(default_factory=list)

    @property
    def joined(self) -> list[float]:
        """When a worker took the place of one that failed."""
        return [begin for begin, _ in self.spans[1:]]


def lanes_of(view: View) -> list[Lane]:
    """The lanes of a run, by rank."""
    lanes = _Lanes()
    for event in view.record.events:
        at = float(event["time_unix_s"])
        match event:
            case {"event": "worker-started", "rank": int(rank)}:
                lanes.open(rank, at, str(event.get("host", "")))
            case {"event": "worker-exited" | "worker-hung", "rank": int(rank)}:
                lanes.close([rank], at, has_failed=is_failure(event))
            case {"event": "host-lost", "ranks": list(ranks)}:
                lanes.close(ranks, at, has_failed=True)
            case {"event": "run-ended" | "run-failed"}:
                lanes.close(list(lanes.begun), at)
    lanes.close(list(lanes.begun), view.end)
    return [lanes.by_rank[rank] for rank in sorted(lanes.by_rank)]


class _Lanes:
    """The lanes so far.

    Attributes:
        begun: When the workers began that are there.
    """

    def __init__(self) -> None:
        self.by_rank: dict[int, Lane] = {}
        self.begun: dict[int, float] = {}

    def open(self, rank: int, at: float, host: str) -> None:
        """A worker begins."""
        lane = self.by_rank.setdefault(rank, Lane(rank))
        lane.host = host or lane.host
        self.close([rank], at)
        self.begun[rank] = at

    def close(self, ranks: list[int], at: float, *, has_failed: bool = False) -> None:
        """Workers end; one that hung has ended before."""
        for rank in ranks:
            if rank in self.begun:
                lane = self.by_rank[rank]
                lane.spans.append((self.begun.pop(rank), at))
                if has_failed:
                    lane.failed.append(at)
