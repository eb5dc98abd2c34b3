"""Failures and recoveries: what failed, when, and at what price, under a lane of each worker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Final

import plotly.graph_objects as go

from holdfast.record import history
from holdfast.record.moments import is_failure
from holdfast.record.recovery_reports import causes_in_words, state_from
from holdfast.record.run_record import Event
from holdfast.record.units import MISSING, count, duration
from holdfast.record.views.run_at import FailureMark, joined_hosts, step_at
from holdfast.views.dashboard.charts import Chart, merged
from holdfast.views.dashboard.markup import (
    PHONE_LACKS,
    Panel,
    TableColumn,
    head,
    number,
    status,
    table,
    text,
)
from holdfast.views.dashboard.run_workers import FEW, host_name
from holdfast.views.dashboard.theme import faded
from holdfast.views.dashboard.view import View

TITLE: Final = "Failures and recoveries"
ROWS: Final = 8
"""Most rows of the table: the newest."""
_COLUMNS: Final = (
    TableColumn(""),
    TableColumn("Step"),
    TableColumn("What failed"),
    TableColumn("Detected in", f"num nowrap {PHONE_LACKS}"),
    TableColumn("Recovered in", "num nowrap"),
    TableColumn("Recomputed", "num nowrap"),
    TableColumn("State from", PHONE_LACKS),
)


def panel(view: View) -> Panel:
    """The time of each worker, the failures in it, and a table of them."""
    lanes = lanes_of(view)
    figure = figure_of(view, lanes) if lanes else None
    note = f'<span class="{PHONE_LACKS}">✕ failed&ensp;○ joined</span>'
    body = _table(view) if view.marks or joined_hosts(view.record) else _none(figure is None)
    return Panel(head=head(TITLE, note, _outcome(view)), figure=figure, body=body)


def _none(is_alone: bool) -> str:
    words = "No failure so far. Each one appears here with its recovery."
    return f'<p class="none">{words}</p>' if is_alone else f'<div class="hf dim">{words}</div>'


def _outcome(view: View) -> str:
    total = len(view.marks)
    done = sum(each.outcome in ("recovered", "restarted") for each in view.record.recoveries)
    if not total:
        return ""
    if done == total:
        return f"<span>{status('--kelp', '✓', f'{done} of {total} recovered')}</span>"
    color = "--red" if view.has_ended else "--amber"
    return f"<span>{status(color, '↻', f'{done} of {total} recovered')}</span>"


def _table(view: View) -> str:
    """The newest failures, and the hosts that have joined since the run began."""
    rows = [(mark.begin, _row(view, mark)) for mark in view.marks]
    rows += [
        (float(each["time_unix_s"]), _joined(view, each)) for each in joined_hosts(view.record)
    ]
    newest = [row for _, row in sorted(rows, key=lambda row: row[0])[-ROWS:]]
    return f'<div style="margin-top:10px">{table(_COLUMNS, newest)}</div>'


def _joined(view: View, event: Event) -> list[str]:
    step = step_at(view.record, event["time_unix_s"])
    words = text(view.fleet.plain(f"host {event.get('host', '')} joined"))
    return [number("+", "join"), f"{step:,}", words, "", "", "", ""]


def _row(view: View, mark: FailureMark) -> list[str]:
    report = mark.report
    if report is None:
        failure = view.record.open_failure
        words = text(view.fleet.plain(history.words(failure))) if failure else MISSING
        outcome = MISSING if view.has_ended else "<b>in progress</b>"
        return [number(mark.name), f"{mark.step:,}", words, MISSING, outcome, MISSING, MISSING]
    is_newest = report is view.record.recoveries[-1]
    return [
        ("*" if is_newest else "") + number(mark.name),
        f"{report.step:,}",
        text(view.fleet.plain(causes_in_words(report))),
        duration(report.seconds.get("found")),
        f"<b>{duration(report.total_s)}</b>" if report.outcome != "failed" else "failed",
        count(report.recomputed_steps, "step"),
        state_from(report),
    ]


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


_LANE: Final = 26
"""The height of a lane, pixels."""
_GAP: Final = 0.35
"""Between two hosts, in lanes."""
_LEFT: Final = 84
_HOST: Final = 44
"""Widths left of the lanes, pixels: without hosts, and for their names."""
_MAX_NAME: Final = 10
_NEAR: Final = 0.01
"""A worker that is back within this share of the axis has no mark of its own."""
_TAG: Final = 0.026
"""The share of the axis that the tag of a failure takes: the chart is twice as wide as others."""
_WIDE: Final = 0.22
"""The share of the axis that the label of a failure needs."""


def figure_of(view: View, lanes: Sequence[Lane]) -> go.Figure:
    """The chart of these lanes."""
    colors = view.colors
    places = _places(lanes)
    saved_at = places[-1] + 1 + _GAP
    has_hosts = any(lane.host for lane in lanes)
    height = round(24 + _LANE * (saved_at + 1.2) + 20)
    chart = Chart(view, height=height, left=_LEFT + _HOST * has_hosts, tag=_TAG)
    chart.layout |= {"hovermode": "closest", "margin": {**chart.layout["margin"], "t": 24}}
    chart.layout["yaxis"] |= {
        "range": [saved_at + 0.6, -0.6], "tickvals": [*places, saved_at],
        "ticktext": [f"{name}  " for name in [*(lane.name for lane in lanes), "checkpoints"]],
        "ticksuffix": "", "showgrid": False, "tickfont": {"color": colors.ink2},
    }  # fmt: skip
    for place, lane in zip(places, lanes, strict=True):
        _add_lane(chart, place, lane)
    if has_hosts:
        _add_hosts(chart, places, lanes)
    saved = view.record.checkpoints
    chart.add(
        view.x([each.at for each in saved]), [saved_at] * len(saved), mode="markers",
        marker={"symbol": "diamond", "size": 8, "color": colors.ink3},
        hovertemplate="%{text}<extra></extra>",
        text=[f"checkpoint of step {each.step:,}" for each in saved],
    )  # fmt: skip
    chart.add_marks()
    _add_labels(chart)
    return chart.figure()


def _places(lanes: Sequence[Lane]) -> list[float]:
    """Places of the lanes, from the top: a host is apart from the one before."""
    found: list[float] = []
    for index, lane in enumerate(lanes):
        is_apart = index > 0 and lane.host != lanes[index - 1].host
        found.append(found[-1] + 1 + _GAP * is_apart if found else 0.0)
    return found


def _add_hosts(chart: Chart, places: Sequence[float], lanes: Sequence[Lane]) -> None:
    """Write the name of each host left of its lanes."""
    by_host: dict[str, list[float]] = {}
    for place, lane in zip(places, lanes, strict=True):
        by_host.setdefault(lane.host, []).append(place)
    for host, its in by_host.items():
        name = host if len(host) <= _MAX_NAME else f"{host[: _MAX_NAME - 1]}…"
        chart.annotate(
            x=0, xref="paper", xanchor="left", xshift=-(_LEFT + _HOST), y=sum(its) / len(its),
            yref="y", text=f"<b>{name}</b>", borderpad=0,
            font={"size": 12, "color": chart.view.colors.ink},
        )  # fmt: skip


def _add_lane(chart: Chart, place: float, lane: Lane) -> None:
    """Draw when the workers of a lane were there, when they were not, and where they failed."""
    view = chart.view
    colors = chart.view.colors
    look = {"fillcolor": faded(view.fleet.color(lane.rank), 0.8), "line": {"width": 0}}
    for begin, end in lane.spans:
        x0, x1 = view.x([begin, end])
        span = {"x0": x0, "x1": x1, "y0": place - 0.2, "y1": place + 0.2}
        chart.shapes.append({"type": "rect", "layer": "below", **span, **look})
    far = [gap for gap in lane.gaps if gap[1] - gap[0] > _NEAR * view.elapsed_s]
    for begin, end in far:
        x0, x1 = view.x([begin, end])
        line = {"color": colors.red, "width": 1, "dash": "2px,3px"}
        span = {"x0": x0, "x1": x1, "y0": place, "y1": place}
        chart.shapes.append({"type": "line", "layer": "below", **span, "line": line})
    for at, size, color, label in (
        ([end for _, end in far], 8, colors.ink2, "joined"),
        (lane.failed, 16, colors.red, "failed"),
    ):
        chart.add(
            view.x(at), [place] * len(at), mode="markers",
            marker={
                "symbol": "circle", "size": size, "color": colors.panel,
                "line": {"color": color, "width": 1.5 if size == 8 else 1},
            },
            hovertemplate=f"{lane.name} {label}<extra></extra>",
        )  # fmt: skip
    chart.add(
        view.x(lane.failed), [place] * len(lane.failed), mode="markers", hoverinfo="skip",
        marker={"symbol": "x-thin", "size": 6, "line": {"color": colors.red, "width": 1.75}},
    )  # fmt: skip


def _add_labels(chart: Chart) -> None:
    """Say next to each tag in which step it was, unless there are many."""
    view = chart.view
    groups = merged(view, _TAG)
    low, high = view.x_range
    begins = view.x([group[0].begin for _, group in groups])
    for place, (_, group) in enumerate(groups):
        after = begins[place + 1] if place + 1 < len(begins) else high
        if not low <= begins[place] or after - begins[place] < _WIDE * (high - low):
            continue
        if len(group) > 1:
            continue
        mark = group[0]
        cost = f" · {duration(mark.report.total_s)}" if mark.report else ""
        chart.annotate(
            x=begins[place], y=1, xanchor="left", yanchor="bottom", xshift=10,
            text=f"step {mark.step:,}{cost}",
            font={"size": 12, "color": view.colors.ink2},
        )  # fmt: skip
