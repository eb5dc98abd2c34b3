"""Attention: the alerts of a run, and one line above all panels with what to do now."""

from __future__ import annotations

import re
from typing import Final

from holdfast.record.units import clock
from holdfast.record.views.alerts import Alert, alerts_of
from holdfast.record.views.headline import headline_of
from holdfast.views.dashboard.markup import Panel, TableColumn, empty, head, status, table, text
from holdfast.views.dashboard.view import View

TITLE: Final = "Alerts"
_COLUMNS: Final = (TableColumn("Rule"), TableColumn("Now"), TableColumn("Since", "num"))
_COLORS: Final = {"failure": "red", "warning": "amber", "done": "blue"}


def alerts(view: View) -> Panel:
    """Each rule with its value, the firing ones first; the values of an ended run are its last."""
    if view.record.started_at is None:
        return empty(TITLE, "Rules are evaluated once the run has begun.")
    found = alerts_of(view.record, view.end)
    firing = sum(each.is_firing for each in found)
    quiet = f'<span class="dim">{len(found) - firing} quiet</span>'
    keys = f"{status('--amber', '▲', f'{firing} firing')} {quiet}" if firing else quiet
    rows = [_row(each, view) for each in found]
    return Panel(head=head(TITLE, keys=keys), body=table(_COLUMNS, rows, "al"))


def _row(alert: Alert, view: View) -> list[str]:
    title = text(alert.rule.title)
    value = text(alert.value)
    if alert.since is None:
        return [title, value, ""]
    at = clock(alert.since, view.now).removeprefix("today ")
    return [status("--amber", "▲", title), f"<b>{value}</b>", at]


def band(view: View) -> Panel:
    """The band; without a body if there is nothing to do."""
    if view.is_reading:
        return Panel()  # what is old is not what to do now
    found = headline_of(view.record, view.state, view.now)
    if found is None:
        return Panel()
    color = _COLORS[found.level]
    fill = "--amber-fill" if color == "amber" else f"--{color}"
    words = re.sub(r"`([^`]*)`", r"<code>\1</code>", text(found.words))
    return Panel(
        body=f'<div class="hf band" style="--c:var(--{color});--f:var({fill})">'
        f"<span>{found.icon}</span><p><strong>{text(found.title)}</strong> {words}</p>"
        f'<span class="more">{text(found.more)}</span></div>'
    )
