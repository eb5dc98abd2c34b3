"""Failures and recoveries: what failed, when, and at what price."""

from __future__ import annotations

from typing import Final

import plotly.graph_objects as go

from holdfast.dashboard.charts import Chart, merged
from holdfast.dashboard.markup import (
    PHONE_LACKS,
    Column,
    Panel,
    head,
    number,
    status,
    table,
    text,
)
from holdfast.dashboard.panels.lanes import Lane, lanes_of
from holdfast.dashboard.theme import faded
from holdfast.dashboard.view import View
from holdfast.observe import history
from holdfast.observe.record.marks import Mark, joined_hosts, step_at
from holdfast.observe.record.run_record import Event
from holdfast.observe.recovery_reports import causes_in_words, state_from
from holdfast.observe.units import MISSING, count, duration

TITLE: Final = "Failures and recoveries"
ROWS: Final = 8
"""Of the table: the newest."""
_MAX_LANES: Final = 12
_LANE: Final = 26
_COLUMNS: Final = (
    Column(""),
    Column("Step"),
    Column("What failed"),
    Column("Detected in", f"num nowrap {PHONE_LACKS}"),
    Column("Recovered in", "num nowrap"),
    Column("Recomputed", "num nowrap"),
    Column("State from", PHONE_LACKS),
)


def panel(view: View) -> Panel:
    """The time of each worker, the failures in it, and a table of them."""
    lanes = lanes_of(view)
    figure = _figure(view, lanes) if lanes else None
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


def _figure(view: View, lanes: list[Lane]) -> go.Figure:
    colors = view.colors
    lanes = _shown(lanes)
    height = 22 + _LANE * len(lanes) + 30 + 20
    chart = Chart(view, height=height, left=84)
    chart.layout |= {"hovermode": "closest", "margin": {**chart.layout["margin"], "t": 24}}
    names = [f"rank {lane.rank}" for lane in lanes]
    chart.layout["yaxis"] |= {
        "range": [len(lanes) + 0.6, -0.6], "tickvals": list(range(len(lanes) + 1)),
        "ticktext": [f"{name}  " for name in [*names, "checkpoints"]], "ticksuffix": "",
        "showgrid": False, "tickfont": {"color": colors.ink2},
    }  # fmt: skip
    for place, lane in enumerate(lanes):
        look = {"fillcolor": faded(colors.worker(place), 0.8), "line": {"width": 0}}
        for begin, end in lane.spans:
            x0, x1 = view.x([begin, end])
            span = {"x0": x0, "x1": x1, "y0": place - 0.2, "y1": place + 0.2}
            chart.shapes.append({"type": "rect", "layer": "below", **span, **look})
        _add_points(chart, place, lane)
    saved = view.record.checkpoints
    chart.add(
        view.x([each.at for each in saved]), [len(lanes)] * len(saved), mode="markers",
        marker={"symbol": "diamond", "size": 8, "color": colors.ink3},
        hovertemplate="%{text}<extra></extra>",
        text=[f"checkpoint of step {each.step:,}" for each in saved],
    )  # fmt: skip
    chart.add_marks()
    _add_labels(chart)
    return chart.figure()


def _shown(lanes: list[Lane]) -> list[Lane]:
    """The lanes that are drawn: of many, those with failures first."""
    if len(lanes) <= _MAX_LANES:
        return lanes
    worst = sorted(lanes, key=lambda lane: (-len(lane.failed), lane.rank))[:_MAX_LANES]
    return sorted(worst, key=lambda lane: lane.rank)


def _add_points(chart: Chart, place: int, lane: Lane) -> None:
    """Mark where a worker failed, and where the next one began."""
    view, colors = chart.view, chart.view.colors
    low, high = view.x_range
    pairs = zip(lane.failed, lane.joined, strict=False)
    far = [join for fail, join in pairs if join - fail > 0.01 * (high - low)]
    for at, size, color, label in (
        (far, 8, colors.ink2, "joined"), (lane.failed, 16, colors.red, "failed"),
    ):  # fmt: skip
        chart.add(
            view.x(at), [place] * len(at), mode="markers",
            marker={
                "symbol": "circle", "size": size, "color": colors.panel,
                "line": {"color": color, "width": 1.5 if size == 8 else 1},
            },
            hovertemplate=f"rank {lane.rank} {label}<extra></extra>",
        )  # fmt: skip
    chart.add(
        view.x(lane.failed), [place] * len(lane.failed), mode="markers", hoverinfo="skip",
        marker={"symbol": "x-thin", "size": 6, "line": {"color": colors.red, "width": 1.75}},
    )  # fmt: skip


def _add_labels(chart: Chart) -> None:
    """Say next to each tag in which step it was, unless there are many."""
    view = chart.view
    groups = merged(view)
    low, high = view.x_range
    begins = view.x([group[0].begin for _, group in groups])
    for place, (_, group) in enumerate(groups):
        after = begins[place + 1] if place + 1 < len(begins) else high
        if not low <= begins[place] or after - begins[place] < 0.22 * (high - low):
            continue
        mark = group[0]
        cost = f" · {duration(mark.report.total_s)}" if mark.report else ""
        chart.annotate(
            x=begins[place], y=1, xanchor="left", yanchor="bottom", xshift=10,
            text=f"step {mark.step:,}{cost}",
            font={"size": 12, "color": view.colors.ink2},
        )  # fmt: skip


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
    words = f"host {text(event.get('host', ''))} joined"
    return [number("+", "join"), f"{step:,}", words, "", "", "", ""]


def _row(view: View, mark: Mark) -> list[str]:
    report = mark.report
    if report is None:
        failure = view.record.open_failure
        words = text(history.words(failure)) if failure else MISSING
        outcome = MISSING if view.has_ended else "<b>in progress</b>"
        return [number(mark.name), f"{mark.step:,}", words, MISSING, outcome, MISSING, MISSING]
    is_newest = report is view.record.recoveries[-1]
    return [
        ("*" if is_newest else "") + number(mark.name),
        f"{report.step:,}",
        text(causes_in_words(report)),
        duration(report.seconds.get("found")),
        f"<b>{duration(report.total_s)}</b>" if report.outcome != "failed" else "failed",
        count(report.recomputed_steps, "step"),
        state_from(report),
    ]
