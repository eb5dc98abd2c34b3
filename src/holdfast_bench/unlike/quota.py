"""CPU quotas: control groups that limit a process to a part of a core.

The kernel's own limit (CFS bandwidth control), in control groups of either version, below the group
of this process. It takes root, or a group that was delegated to this user.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from holdfast.errors import HoldfastError
from holdfast.linux import control_groups

QUOTA_US: Final = 2_500
"""What a process gets in each period: little, so that shards are slowed down evenly. The kernel
allows no less than a millisecond.
"""


class NoQuota(HoldfastError):
    """No process can be limited here."""


@contextmanager
def limited_groups(factors: Sequence[float]) -> Iterator[tuple[str, ...]]:
    """A control group for each process, which limits it to `1 / factor` of a core.

    Args:
        factors: Of each process. With 1, there is no limit: its group is the empty string.

    Raises:
        NoQuota: This process may not make such groups.
    """
    made: list[Path] = []
    try:
        for number, factor in enumerate(factors):
            if factor > 1:
                made.append(_make(f"holdfast-bench-{os.getpid()}-{number}", factor))
        groups = iter(made)
        yield tuple(str(next(groups)) if factor > 1 else "" for factor in factors)
    finally:
        for group in made:
            with suppress(OSError):  # a process in it has not ended yet
                group.rmdir()


def _make(name: str, factor: float) -> Path:
    reasons = []
    for parent in control_groups.groups("cpu"):
        group = parent / name
        try:
            group.mkdir()
        except OSError as error:
            reasons.append(f"{group}: {error.strerror}")
            continue
        try:
            if _limit(group, QUOTA_US, round(QUOTA_US * factor)):
                return group
            reasons.append(f"{parent} does not limit CPU time")
        except OSError as error:
            reasons.append(f"{group}: {error.strerror}")
        group.rmdir()
    raise NoQuota("; ".join(reasons) or "there are no control groups of CPU time")


def _limit(group: Path, quota_us: int, period_us: int) -> bool:
    """Set the limit of a group; returns whether it can have one."""
    if (group / "cpu.max").exists():
        (group / "cpu.max").write_text(f"{quota_us} {period_us}")
        return True
    if (group / "cpu.cfs_quota_us").exists():
        (group / "cpu.cfs_period_us").write_text(str(period_us))
        (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        return True
    return False
