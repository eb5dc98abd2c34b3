"""Lanes: when each worker of a run was there, and how it ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Final

from holdfast.record.moments import is_failure
from holdfast.views.dashboard.run_workers import FEW, host_name
from holdfast.views.dashboard.view import View

MAX_LANES: Final = 8
"""Most workers or hosts that are drawn."""

Spans = list[tuple[float, float]]
"""From when to when, Unix time, seconds."""


@dataclass(slots=True)
class Lane:
    """The time of one rank, or of all ranks of a host.

    Attributes:
        rank: Its rank; of a host the first one.
        name: For people.
        host: Its host, for people; empty unless there are several hosts.
        spans: Times in which its workers ran.
        failed: Times at which they failed.
    """

    rank: int
    name: str = ""
    host: str = ""
    spans: Spans = field(default_factory=list)
    failed: list[float] = field(default_factory=list)

    @property
    def gaps(self) -> Spans:
        """Times without a worker."""
        return [(end, begin) for (_, end), (begin, _) in pairwise(self.spans)]


def lanes_of(view: View) -> list[Lane]:
    """The lanes that are drawn: of few workers all, by host; of many those that have failed; if
    these are many, too, or none, the hosts with the most failures.
    """
    lanes = _all(view)
    fleet = view.fleet
    if len(lanes) <= FEW:
        ranks = chain.from_iterable(fleet.hosts.values())
        order = {rank: place for place, rank in enumerate(ranks)}
        return sorted(lanes, key=lambda lane: (order.get(lane.rank, len(order)), lane.rank))
    failed = [lane for lane in lanes if lane.failed]
    if 0 < len(failed) <= MAX_LANES:
        return failed
    hosts = _by_host(view, lanes)
    worst = sorted(hosts, key=lambda lane: (-len(lane.failed), lane.rank))[:MAX_LANES]
    return sorted(worst, key=lambda lane: lane.rank)


def _by_host(view: View, lanes: Iterable[Lane]) -> list[Lane]:
    """A lane for each host."""
    by_host: dict[str, list[Lane]] = {}
    for lane in lanes:
        by_host.setdefault(view.fleet.agents.get(lane.rank, ""), []).append(lane)
    found = []
    for agent, its in by_host.items():
        spans = _union(span for lane in its for span in lane.spans)
        failed = sorted({at for lane in its for at in lane.failed})
        name = host_name(agent) or "workers"
        found.append(Lane(its[0].rank, name=name, spans=spans, failed=failed))
    return found


def _union(spans: Iterable[tuple[float, float]]) -> Spans:
    """Times that are in any of the spans."""
    found: Spans = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def _all(view: View) -> list[Lane]:
    """The lanes of all ranks, by rank."""
    lanes = _Lanes()
    for event in view.record.events:
        at = float(event["time_unix_s"])
        match event:
            case {"event": "worker-started", "rank": int(rank)}:
                lanes.open(rank, at)
            case {"event": "worker-exited" | "worker-hung", "rank": int(rank)}:
                lanes.close([rank], at, has_failed=is_failure(event))
            case {"event": "host-lost", "ranks": list(ranks)}:
                lanes.close(ranks, at, has_failed=True)
            case {"event": "run-ended" | "run-failed"}:
                lanes.close(list(lanes.begun), at)
    lanes.close(list(lanes.begun), view.drawn_until)
    found = [lanes.by_rank[rank] for rank in sorted(lanes.by_rank)]
    for lane in found:
        lane.name = f"rank {lane.rank}"
        lane.host = view.fleet.host_of(lane.rank)
    return found


class _Lanes:
    """The lanes so far.

    Attributes:
        begun: Begins of the workers that are there.
    """

    def __init__(self) -> None:
        self.by_rank: dict[int, Lane] = {}
        self.begun: dict[int, float] = {}

    def open(self, rank: int, at: float) -> None:
        """A worker begins."""
        self.by_rank.setdefault(rank, Lane(rank))
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
