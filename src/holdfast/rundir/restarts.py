"""Restarts: how often all workers of a run were restarted, as its log of events says.

Numbers of generations would count more: also those that were over before any worker resumed.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.rundir import json_lines
from holdfast.rundir.run_directory import EVENTS


def count(run_dir: Path) -> int:
    """Restarts since the newest start of a run.

    The agent of each host logs a generation before its workers resume, so they find their own start
    counted, unless the disk is full: then the log drops lines.
    """
    starts = set[int]()
    for entry in json_lines.read(run_dir / EVENTS):
        match entry.get("event"):
            case "run-started":
                starts.clear()
            case "generation-started":
                starts.add(entry["number"])
    return max(0, len(starts) - 1)  # it may have been stopped before any
