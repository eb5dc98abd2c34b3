"""Cores: what they are, and how many this process can use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from holdfast.linux.control_groups import ROOT, groups, lines


def usable_cores(root: Path = ROOT) -> int:
    """Cores that this process may run on at a time; a container's limit is rounded down.

    Args:
        root: The directory below which `proc` and the control groups are mounted.
    """
    return max(1, min([len(os.sched_getaffinity(0)), *_limits(root)]))


def model_name(root: Path = ROOT) -> str:
    """Name that the maker of the CPU gives it.

    Args:
        root: The directory below which `proc` is mounted.
    """
    for line in lines(root / "proc/cpuinfo"):
        name, _, value = line.partition(":")
        if name.strip() == "model name" and value.strip():
            return value.strip()
    return "CPU"


def _limits(root: Path) -> Iterator[int]:
    for group in groups("cpu", root):
        quota = lines(group / "cpu.max") or [  # of version 2; microseconds of CPU time per period
            *lines(group / "cpu.cfs_quota_us"), *lines(group / "cpu.cfs_period_us"),
        ]  # fmt: skip
        words = " ".join(quota).split()
        if len(words) == 2 and all(word.isdigit() for word in words):  # otherwise there is none
            yield int(words[0]) // int(words[1])
