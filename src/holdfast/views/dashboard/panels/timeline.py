"""Failures and recoveries: what failed, when, and at what price."""

from __future__ import annotations

from typing import Final

from holdfast.record import history
from holdfast.record.recovery_reports import causes_in_words, state_from
from holdfast.record.run_record import Event
from holdfast.record.units import MISSING, count, duration
from holdfast.record.views.run_at import FailureMark, joined_hosts, step_at
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
from holdfast.views.dashboard.panels.lanes import figure_of, lanes_of
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
