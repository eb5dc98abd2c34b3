"""Host supply: the CPUs, GPUs and memory of this host that this process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.core.placement.shares import Supply
from holdfast.linux.control_groups import ROOT
from holdfast.linux.host_memory import available, total_bytes
from holdfast.linux.supply import usable_cores, visible_gpus

if TYPE_CHECKING:
    from holdfast.hardware.nvml import GpuNames

_GPUS: Final = "proc/driver/nvidia/gpus"
_DRIVERS: Final = ("dev/nvidiactl", "dev/dxg", _GPUS)
"""Each says that there is a driver; the second that of WSL."""


def supply_here(environment: Mapping[str, str]) -> Supply:
    """Resources that this process may use now.

    Args:
        environment: Its own, which may restrict the GPUs.
    """
    return Supply(
        cpus=tuple(sorted(os.sched_getaffinity(0))),
        max_cpus=usable_cores(),
        gpus=gpus_here(environment),
        memory_bytes=total_bytes(),
        available_bytes=available().size_bytes,
    )


def gpus_here(environment: Mapping[str, str], root: Path = ROOT) -> tuple[str, ...]:
    """GPUs that this process may use, by the driver's UUIDs, in its order; a GPU that is divided
    (MIG) counts as its instances.

    A number means another GPU in each Slurm job that sees only its own GPUs, and a UUID means the
    same one to all. Without a driver that answers, names are those that the environment gives.

    Args:
        environment: Its own, which may restrict them.
        root: The directory below which `proc` and `dev` are mounted.
    """
    wanted = visible_gpus(environment)
    if wanted == () or (wanted is None and not any((root / each).exists() for each in _DRIVERS)):
        return ()
    from holdfast.hardware.nvml import gpu_names  # imports its library, which takes 50 ms

    known = gpu_names()
    if not known:
        numbers = map(str, range(len(list((root / _GPUS).glob("*")))))
        return tuple(dict.fromkeys(numbers if wanted is None else wanted))
    if wanted is None:
        return tuple(uuid for gpu in known for uuid in gpu.uuids)
    return tuple(dict.fromkeys(_uuids(wanted, known)))


def _uuids(wanted: Sequence[str], known: Sequence[GpuNames]) -> Iterator[str]:
    """The UUIDs of named GPUs. CUDA ignores all names from the first unknown one on."""
    for name in wanted:
        if name.isdigit():
            found = [uuid for gpu in known[int(name) :][:1] for uuid in gpu.uuids]
        else:
            found = [uuid for gpu in known for uuid in gpu.named(name)]
        if not found:
            return
        yield from found
