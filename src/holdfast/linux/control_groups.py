"""Control groups: which of them limit this process.

Control groups of both versions are read, with all groups around them (Linux,
Documentation/admin-guide: cgroup-v1, cgroup-v2.rst).
"""

from __future__ import annotations

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
