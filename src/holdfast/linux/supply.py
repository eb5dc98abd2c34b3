"""Supply: the CPUs, GPUs and memory of this host that this process may use."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Final

from holdfast.core.placement.shares import Share, Supply
from holdfast.linux.cores import usable_cores
from holdfast.linux.host_memory import available, total_bytes

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
"""Variable that names the GPUs that CUDA uses; what starts this process may have set it."""
_GPUS: Final = Path("/proc/driver/nvidia/gpus")
_GPU: Final = re.compile(r"\d+|(GPU|MIG)-.+", re.ASCII)


def supply_here(environment: Mapping[str, str]) -> Supply:
    """Resources that this process may use now.

    Args:
        environment: Its own, which may restrict the GPUs.
    """
    return Supply(
        cpus=tuple(sorted(os.sched_getaffinity(0))),
        max_cpus=usable_cores(),
        gpus=tuple(dict.fromkeys(_gpus(environment))),
        memory_bytes=total_bytes(),
        available_bytes=available().size_bytes,
    )


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


def _gpus(environment: Mapping[str, str]) -> Iterable[str]:
    names = visible_gpus(environment)
    return map(str, range(len(list(_GPUS.glob("*"))))) if names is None else names
