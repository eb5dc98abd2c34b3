"""Restarts: how often all workers of a run were restarted, as its log of events says.

Numbers of generations would count more: also those that were over before any worker resumed.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.observe import lines
from holdfast.observe.run_dir import EVENTS


def count(run_dir: Path) -> int:
    """Restarts since the newest start of a run.

    An agent logs a generation before its workers resume, so they find their own start counted,
    unless the disk is full: then the log drops lines.
    """
    starts = 0
    for entry in lines.read(run_dir / EVENTS):
        match entry.get("event"):
            case "run-started":
                starts = 0
            case "generation-started":
                starts += 1
    return max(0, starts - 1)  # it may have been stopped before any
