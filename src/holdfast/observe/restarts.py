"""Restarts: how often all workers of a run were started anew, as its log of events tells.

Numbers of generations would tell more: of those, too, that were over before anybody was released.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.observe import lines
from holdfast.observe.run_dir import EVENTS


def count(run_dir: Path) -> int:
    """Restarts in the newest life of a run.

    An agent logs a generation before it releases its workers, so they find their own start counted,
    but for a full disk, on which the log forgives lines.
    """
    starts = 0
    for entry in lines.read(run_dir / EVENTS):
        match entry.get("event"):
            case "run-started":
                starts = 0
            case "generation-started":
                starts += 1
    return max(0, starts - 1)  # it may have been stopped before any
