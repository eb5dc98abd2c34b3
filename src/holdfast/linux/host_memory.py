"""Host memory: how much is available, and whether the kernel has OOM-killed a process.

A container's limit counts like the machine's own: control groups of both versions are read, with
all groups around them (Linux, Documentation/admin-guide: cgroup-v1/memory.rst, cgroup-v2.rst).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.filesize import decimal as in_words

from holdfast.linux.control_groups import ROOT, groups, lines

OOM_ATTRIBUTION_S: Final = 3.0
"""Time after an OOM kill within which the end of a process is attributed to it."""

_LIMITS: Final = (
    ("memory.max", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)
_COUNTERS: Final = ("memory.events", "memory.oom_control")


@dataclass(frozen=True, slots=True)
class Available:
    """Available memory, including the page cache that the kernel can reclaim.

    Attributes:
        size_bytes: Size of the available memory.
        limit: The limit that applies, for messages.
    """

    size_bytes: int
    limit: str


def available(root: Path = ROOT) -> Available:
    """The memory that is available to this process and its children.

    Args:
        root: The directory below which `proc` and the control groups are mounted.
    """
    machine = _table(root / "proc/meminfo").get("MemAvailable:", 0) * 1024
    limits = [Available(machine, "this machine's memory")]
    for group in groups("memory", root):
        for limit_file, usage_file in _LIMITS:
            limit = _number(group / limit_file)
            usage = _number(group / usage_file)
            if limit is not None and usage is not None:
                stat = _table(group / "memory.stat")
                cache = stat.get("total_inactive_file", stat.get("inactive_file", 0))
                words = f"the {in_words(limit)} that {group} allows"
                limits.append(Available(max(0, limit - usage + cache), words))
    return min(limits, key=lambda each: each.size_bytes)


def total_bytes() -> int:
    """All memory that this process and its children could ever have."""
    machine = _table(ROOT / "proc/meminfo").get("MemTotal:", 0) * 1024
    limits = [
        limit
        for group in groups("memory")
        for limit_file, _ in _LIMITS
        if (limit := _number(group / limit_file)) is not None
    ]
    return min([machine, *limits])


class OomKills:
    """Tells whether the kernel has OOM-killed a process just now; to be called often.

    The end of a process may be noticed some time after its death.
    """

    def __init__(self) -> None:
        self._count = oom_kills()
        self._risen_at = -math.inf

    def look(self) -> bool:
        """True if a process was OOM-killed within the last OOM_ATTRIBUTION_S."""
        count = oom_kills()
        now = time.monotonic()
        if count > self._count:
            self._count = count
            self._risen_at = now
        return now - self._risen_at < OOM_ATTRIBUTION_S


def oom_kills(root: Path = ROOT) -> int:
    """Processes of our control group that were OOM-killed so far; of the whole machine if there
    is no such group.
    """
    for group in groups("memory", root):
        for file in _COUNTERS:
            count = _table(group / file).get("oom_kill")
            if count is not None:
                return count
    return _table(root / "proc/vmstat").get("oom_kill", 0)


def _table(path: Path) -> dict[str, int]:
    """The numbers in a file that has a name and a number on each line."""
    rows = (line.split() for line in lines(path))
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def _number(path: Path) -> int | None:
    """The number in a file; None if it holds `max` or does not exist."""
    text = "".join(lines(path))
    return int(text) if text.isdigit() else None
