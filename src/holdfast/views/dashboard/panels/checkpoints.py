"""Checkpoints: what would be lost now."""

from __future__ import annotations

from math import isnan
from pathlib import Path
from statistics import median
from typing import Final

from holdfast.record.goodput import Cause
from holdfast.record.units import MISSING, count, duration, size
from holdfast.views.dashboard.markup import Panel, TableColumn, empty, head, status, table
from holdfast.views.dashboard.view import View

TITLE: Final = "Checkpoints"
ROWS: Final = 6
_COLUMNS: Final = (
    TableColumn("Step"),
    TableColumn("Age", "num nowrap"),
    TableColumn("Size", "num nowrap"),
    TableColumn("Save", "num nowrap"),
    TableColumn("Stored", "nowrap"),
)


def panel(view: View) -> Panel:
    """Work at risk, the time of the next checkpoint, and the newest ones."""
    saved = view.record.checkpoints
    every = _every(view)
    if not saved:
        due = f" The first is due at step {every:,}." if every else ""
        return empty(TITLE, f"None yet.{due}")
    waits = dict(
        zip(
            view.record.steps.columns["step"], view.record.steps.losses[Cause.CHECKPOINT],
            strict=True,
        )
    )  # fmt: skip
    rows = []
    for each in reversed(saved[-ROWS:]):
        is_here = Path(each.directory).is_dir()
        stored = status("--kelp", "✓", "here") if is_here else '<span class="dim">deleted</span>'
        rows.append(
            [
                f"<b>{each.step:,}</b>",
                duration(view.end - each.at),
                size(each.size_bytes),
                duration(waits.get(each.step + 1)),
                stored,
            ]
        )
    note = f"every {count(every, 'step')}" if every else ""
    body = f'<div class="hf">{_risk(view, every)}{table(_COLUMNS, rows)}</div>'
    return Panel(head=head(TITLE, note), body=body)


def _every(view: View) -> int:
    """After how many steps a checkpoint is due; 0 if that is not known."""
    given = getattr(getattr(view.record.job, "checkpoint", None), "every_steps", None)
    return int(given) if given else 0


def _risk(view: View, every: int) -> str:
    steps = view.record.steps
    last = view.record.checkpoints[-1]
    at_risk = max(0, steps.newest - last.step)
    seconds = max(0.0, steps.columns["at"][-1] - last.at) if at_risk else 0.0
    boxes = [("At risk now", count(at_risk, "step"), f"{duration(seconds)} of work")]
    if view.has_ended:
        boxes[0] = ("Not saved", count(at_risk, "step"), "at the end of the run")
        boxes.append(("Saved", count(len(view.record.checkpoints), "time"), "in this run"))
    elif every:
        due = (steps.newest // every + 1) * every
        gaps = [each for each in steps.columns["seconds"][-100:] if not isnan(each)]
        left = (due - steps.newest) * median(gaps) if gaps else None
        boxes.append(("Next checkpoint", duration(left), f"step {due:,}"))
    else:
        boxes.append(("Next checkpoint", MISSING, "at a time, not a step"))
    return (
        '<div class="two">'
        + "".join(
            f'<div><span class="l">{name}</span><b>{value}</b><span class="dim">{note}</span></div>'
            for name, value, note in boxes
        )
        + "</div>"
    )
