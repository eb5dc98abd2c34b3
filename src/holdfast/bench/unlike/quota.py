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

PERIOD_US: Final = 5_000
"""The kernel enforces the limit in each period: short ones, so that shards are slowed down evenly.
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
    reason = "no control group limits the CPU time of this process"
    for parent in control_groups.groups("cpu"):
        group, quota_us = parent / name, round(PERIOD_US / factor)
        try:
            group.mkdir()
        except OSError as error:
            reason = f"{group}: {error.strerror}"
            continue
        try:
            if (group / "cpu.cfs_quota_us").exists():
                (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (group / "cpu.cfs_quota_us").write_text(str(quota_us))
                return group
            if (group / "cpu.max").exists():
                (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
                return group
            reason = f"{parent} does not limit CPU time"
        except OSError as error:
            reason = f"{group}: {error.strerror}"
        group.rmdir()
    raise NoQuota(f"no CPU quota: {reason}")
