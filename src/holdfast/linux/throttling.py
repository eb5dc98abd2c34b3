"""Throttling: how long the processor limit of a control group has stopped this process.

See Linux, Documentation/scheduler/sched-bwc.rst.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from holdfast.linux.control_groups import ROOT, groups, lines

READ_EVERY_S: Final = 0.05
"""Files are read again after this time: it takes some tens of microseconds."""


class Throttling:
    """Counts the time in which this process was stopped.

    Args:
        root: The directory below which `proc` and the control groups are mounted.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._read_at = -READ_EVERY_S
        self._own: list[str] = []
        self._groups: list[Path] = []
        self._counted: dict[Path, int] = {}
        self._total_ns = 0

    def total_ns(self) -> int:
        """The time since this object was made, nanoseconds; of the group that was stopped most."""
        now = time.monotonic()
        if now - self._read_at >= READ_EVERY_S:
            self._read_at = now
            own = lines(self._root / "proc/self/cgroup")
            if own != self._own:  # to find the groups takes longer than to read them
                self._own = own
                self._groups = list(groups("cpu", self._root))
            counted = {group: _throttled_ns(group) for group in self._groups}
            # A process may be moved to another group, whose count began before.
            rises = [count - self._counted.get(group, count) for group, count in counted.items()]
            self._total_ns += max(rises, default=0)
            self._counted = counted
        return self._total_ns


def _throttled_ns(group: Path) -> int:
    fields = dict(line.split(maxsplit=1) for line in lines(group / "cpu.stat"))
    return int(fields.get("throttled_time", 0)) or 1000 * int(fields.get("throttled_usec", 0))
