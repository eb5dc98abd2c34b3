"""Control groups: which of them limit this process, and how long they have stopped it.

Control groups of both versions are read, with all groups around them (Linux,
Documentation/admin-guide: cgroup-v1, cgroup-v2.rst).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

ROOT: Final = Path("/")


def groups(controller: str, root: Path = ROOT) -> Iterator[Path]:
    """The control groups that limit this process, each before its parent.

    They are directories of files, whose names depend on the version.

    Args:
        controller: Resource that they limit: `memory` or `cpu`.
        root: The directory below which `proc` and the control groups are mounted.
    """
    for line in lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        _, _, _, mounted, point, *_ = before.split()
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2" or (kind == "cgroup" and controller in options.split(",")):
            own = PurePosixPath(_own_group(root, "" if kind == "cgroup2" else controller))
            inside = own.relative_to(mounted) if own.is_relative_to(mounted) else PurePosixPath()
            for group in (inside, *inside.parents) if inside.parts else (inside,):
                yield root / point.lstrip("/") / group


def _own_group(root: Path, controller: str) -> str:
    for line in lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return "/"


def lines(path: Path) -> list[str]:
    """The lines of a file; none if it cannot be read."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


READ_EVERY_S: Final = 0.05
"""Files are read again after this time: it takes some tens of microseconds."""


class Throttling:
    """Counts the time in which this process was stopped."""

    def __init__(self) -> None:
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
            own = lines(ROOT / "proc/self/cgroup")
            if own != self._own:  # to find the groups takes longer than to read them
                self._own = own
                self._groups = list(groups("cpu"))
            counted = {group: _throttled_ns(group) for group in self._groups}
            # A process may be moved to another group, whose count began before.
            rises = [count - self._counted.get(group, count) for group, count in counted.items()]
            self._total_ns += max(rises, default=0)
            self._counted = counted
        return self._total_ns


def _throttled_ns(group: Path) -> int:
    fields = dict(line.split(maxsplit=1) for line in lines(group / "cpu.stat"))
    return int(fields.get("throttled_time", 0)) or 1000 * int(fields.get("throttled_usec", 0))
