"""Numerics: the hardware and software that decide the bits of a worker's results.

Two workers with equal numerics and the same job compute the same bits. Settings of the job itself,
such as the number of threads, are not part of the numerics.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

import torch

from holdfast.errors import JobError
from holdfast.job.models import MistralSpec, Model
from holdfast.worker.checks.kernels import kernel_digests

_VARIABLES: Final = ("MKL_CBWR", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")
"""Environment variables by which libraries choose kernels."""
_LIBRARIES: Final = ("bitsandbytes", "peft", "transformers")
"""Libraries that compute parts of a model with 4-bit weights."""


def numerics_of(numerics: str, model: Model | None, device: torch.device) -> dict[str, str]:
    """Values that the bits of this host's workers depend on, by name.

    It is the same for all workers of a host, so that they decide alike.

    Args:
        numerics: The job's; if portable, results of kernels count instead of the CPU model.
        model: The job's, if its task is built in.
        device: Device of this worker.
    """
    portable = numerics == "portable" and device.type == "cpu"
    return {
        "torch": torch.__version__,
        "device": _devices() if device.type == "cuda" else device.type,
        **(kernel_digests() if portable else {"processor": _processor()}),
        "capability": torch.backends.cpu.get_cpu_capability(),
        **{name: os.environ.get(name, "unset") for name in _VARIABLES},
        **{name: _version(name) for name in _LIBRARIES if isinstance(model, MistralSpec)},
    }


def check_portable() -> None:
    """Raises: JobError: This CPU cannot compute with `numerics: portable`."""
    capability = torch.backends.cpu.get_cpu_capability()
    if capability != "AVX2":
        raise JobError(
            f"numerics=portable needs a CPU with AVX2; torch uses {capability} on this host. "
            "Set numerics=exact, or run on another host"
        )
    kernel_digests()  # before the user's code changes torch's defaults


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Differences, as `name old → new`; keys that a checkpoint lacks are skipped."""
    return [
        f"{name} {before[name]} → {now[name]}"
        for name in now
        if before.get(name, now[name]) != now[name]
    ]


def exactness(sync: str, numerics: str, changed: list[str]) -> str:
    """Exactness of the weights of a run."""
    if sync == "ddp":
        return "not exact: sync=ddp"
    if numerics == "fast":
        return "not exact: numerics=fast"
    return f"order-exact: {', '.join(changed)}" if changed else "bit-exact"


def _devices() -> str:
    names = {torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())}
    return f"cuda {', '.join(sorted(names))}"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "missing"


def _processor() -> str:
    with Path("/proc/cpuinfo").open(encoding="utf-8") as file:  # a block for each processor
        for line in file:
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.machine()
