"""Runs: which run is better, and whether the weights are equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.record.run_record import RunRecord
from holdfast.record.units import MISSING, clock, digits, duration
from holdfast.record.views.comparison import difference
from holdfast.record.views.metric import metric_of
from holdfast.views.dashboard.markup import PHONE_LACKS, TableColumn, head, status, table, text
from holdfast.views.dashboard.panels.summary import STATES
from holdfast.views.dashboard.theme import LIGHT
from holdfast.views.dashboard.view import View

HEAD: Final = head("Runs", "a selected run is drawn dashed")
_COLUMNS: Final = (
    TableColumn(""),
    TableColumn("State"),
    TableColumn("Run", "nowrap"),
    TableColumn("Started", f"nowrap {PHONE_LACKS}"),
    TableColumn("Steps", "num nowrap"),
    TableColumn("Duration", f"num nowrap {PHONE_LACKS}"),
    TableColumn("Accuracy", "num"),
    TableColumn("Goodput", f"num {PHONE_LACKS}"),
    TableColumn("Recoveries", f"num {PHONE_LACKS}"),
    TableColumn("Compared with this run", f"mid {PHONE_LACKS}"),
)


def table_of(records: Sequence[RunRecord], current: str, compared: str, now: float) -> str:
    """The table of runs.

    Args:
        records: The runs.
        current: The one that the page shows.
        compared: The one that is drawn dashed.
        now: Unix time, seconds.
    """
    shown = next((each for each in records if each.path.name == current), None)
    return table(_COLUMNS, [_row(each, shown, compared, now) for each in records])


def _row(record: RunRecord, shown: RunRecord | None, compared: str, now: float) -> list[str]:
    view = View(record=record, now=now, colors=LIGHT)  # it draws nothing
    icon, word, color = STATES[view.state.name]
    name = record.path.name
    total = record.total_steps
    metric = metric_of(record)
    newest = record.steps.newest
    of = f'<span class="{PHONE_LACKS}"> of {total:,}</span>' if total and total != newest else ""
    line, kind = ("--kelp-fill", "") if record is shown else ("--cmp", "dash")
    key = f'<i class="k {kind}" style="--c:var({line});display:block;margin-top:8px"></i>'
    return [
        key if record is shown or name == compared else "",
        status(color, icon, word),
        f"<b>{text(name)}</b>",
        clock(view.start, now),
        f"{newest:,}{of}",
        duration(view.elapsed_s),
        metric.shown(metric.values[-1]) if metric else MISSING,
        f"{digits(record.goodput().samples_per_s)}/s" if newest else MISSING,
        f"{len(record.recoveries)}",
        "" if shown is None or record is shown else comparison(record, shown),
    ]


def comparison(record: RunRecord, other: RunRecord) -> str:
    """Difference of a run from another, safe in HTML."""
    ours, theirs = ((each.result or {}).get("weights_sha256") for each in (record, other))
    clauses = []
    if ours and theirs and ours == theirs:
        clauses.append("same weights")
    keys = difference(record, other)
    if keys:
        clauses.append(f"differs: {keys}")
    elif ours and theirs and ours != theirs:
        clauses.append("other weights")
    speed = record.goodput().samples_per_s
    reference = other.goodput().samples_per_s
    if speed and reference:
        factor = max(speed, reference) / min(speed, reference)
        if factor >= 1.05:
            clauses.append(f"{factor:.1f}× {'faster' if speed > reference else 'slower'}")
    return text(" · ".join(clauses))
