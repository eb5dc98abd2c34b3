"""Supply: the CPUs of this host that this process may use, and the GPUs that CUDA may use."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Final

from holdfast.core.placement.shares import Share
from holdfast.linux.control_groups import ROOT, groups, lines

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
"""Variable that names the GPUs that CUDA uses; what starts this process may have set it."""
_GPU: Final = re.compile(r"\d+|(GPU|MIG)-.+", re.ASCII)


def restrict(share: Share) -> None:
    """Restrict this process, and those that it will start, to a share of its host.

    CUDA must not have been used in this process, and it must have one thread.
    """
    if share.cpus:
        os.sched_setaffinity(0, share.cpus)
    if share.gpus:
        os.environ[VISIBLE] = ",".join(share.gpus)


def visible_gpus(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """The names of the GPUs that CUDA uses, numbers or those of the driver; None: all there are.

    CUDA ignores all from the first that is no name on.
    """
    if VISIBLE not in environment:
        return None
    names = (name.strip() for name in environment[VISIBLE].split(","))
    return tuple(takewhile(_GPU.fullmatch, names))


def usable_cores(root: Path = ROOT) -> int:
    """Cores that this process may run on at a time; a container's limit is rounded down.

    Args:
        root: The directory below which `proc` and the control groups are mounted.
    """
    return max(1, min([len(os.sched_getaffinity(0)), *_limits(root)]))


def model_name() -> str:
    """Name that the maker of the CPU gives it; that of its architecture if the kernel has none."""
    for line in lines(ROOT / "proc/cpuinfo"):
        name, _, value = line.partition(":")
        if name.strip() == "model name" and value.strip():
            return value.strip()
    return platform.machine()


def _limits(root: Path) -> Iterator[int]:
    for group in groups("cpu", root):
        quota = lines(group / "cpu.max") or [  # of version 2; microseconds of CPU time per period
            *lines(group / "cpu.cfs_quota_us"), *lines(group / "cpu.cfs_period_us"),
        ]  # fmt: skip
        words = " ".join(quota).split()
        if len(words) == 2 and all(word.isdigit() for word in words):  # otherwise there is none
            yield int(words[0]) // int(words[1])
