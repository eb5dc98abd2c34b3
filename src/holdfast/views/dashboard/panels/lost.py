"""Use of the time: each second of the run, by cause."""

from __future__ import annotations

from typing import Final

from holdfast.record.goodput import Cause
from holdfast.record.units import duration, percent
from holdfast.views.dashboard.markup import Panel, TableColumn, empty, head, table
from holdfast.views.dashboard.view import View

TITLE: Final = "Where the time went"
GROUPS: Final = (
    ("useful steps", "--kelp-fill", (Cause.USEFUL,)),
    ("waiting for data", "--data", (Cause.DATA,)),
    ("waiting for workers", "--wait", (Cause.IMBALANCE,)),
    ("shard verification", "--reduce", (Cause.VERIFICATION,)),
    ("fewer workers", "--loss2", (Cause.FEWER_WORKERS,)),
    ("initialization", "--ink3", (Cause.INITIALIZATION,)),
    ("checkpoints", "--ckpt", (Cause.CHECKPOINT,)),
    ("evaluation", "--fwd", (Cause.EVALUATION,)),
    ("recovery", "--red", (Cause.DETECTION, Cause.NEW_GENERATION, Cause.STATE_TRANSFER)),
    ("recomputed steps", "--loss3", (Cause.RECOMPUTED,)),
    ("stopped", "--inset", (Cause.STOPPED,)),
    ("ending", "--line", (Cause.ENDING,)),
)
"""Name, color and causes of each row."""
_RARE: Final = frozenset({"shard verification", "fewer workers", "stopped", "ending"})
"""Rows without a second that are left out."""
_COLUMNS: Final = (
    TableColumn(""),
    TableColumn("", "num nowrap mid"),
    TableColumn("", "num nowrap"),
)


def panel(view: View) -> Panel:
    """A bar of all causes, and a row for each."""
    if not view.has_steps:
        return empty(TITLE, "Needs a step.")
    found = view.record.goodput()
    total = found.total_s or 1.0
    spent = [
        (name, color, sum(found.seconds[cause] for cause in causes))
        for name, color, causes in GROUPS
    ]
    parts = "".join(
        f'<i style="flex:{100 * seconds / total:.3f} 0 0;background:var({color})"></i>'
        for _, color, seconds in spent
        if seconds
    )
    rows = [
        [
            f'<i class="k sq" style="--c:var({color});margin-right:8px"></i>{name}',
            duration(seconds),
            percent(seconds / total),
        ]
        for name, color, seconds in spent
        if seconds or name not in _RARE
    ]
    keys = f"<span>{duration(found.total_s)}</span>"
    body = f'<div class="hf"><div class="one">{parts}</div>{table(_COLUMNS, rows, "plain")}</div>'
    return Panel(head=head(TITLE, keys=keys), body=body)
