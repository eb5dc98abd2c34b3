"""Numerics: the hardware and software that decide the bits of a worker's results.

Two workers with equal numerics and the same job compute the same bits. Settings of the job itself,
such as the number of threads, are not part of the numerics.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib import metadata
from typing import Any, Final

import torch

from holdfast.collectives.barrier_tags import WorkerTag
from holdfast.collectives.group import Group
from holdfast.errors import JobError
from holdfast.hardware.nvml import Driver
from holdfast.job.models import MistralSpec, Model
from holdfast.job.train_job import TrainJob
from holdfast.linux.supply import model_name
from holdfast.worker.checks.kernels import kernel_digests

_VARIABLES: Final = ("MKL_CBWR", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")
"""Environment variables by which libraries choose kernels."""
_CUBLAS_VARIABLE: Final = "CUBLAS_WORKSPACE_CONFIG"
_LIBRARIES: Final = ("bitsandbytes", "peft", "transformers")
"""Libraries that compute parts of a model with 4-bit weights."""


def values_of_gpu(gpu: Any, versions: Mapping[str, str]) -> dict[str, str]:
    """Values of a GPU, and versions of its software, by name.

    Args:
        gpu: From `torch.cuda.get_device_properties`; its name has the profile of an instance of
            MIG.
        versions: The versions by name.
    """
    units = f"{gpu.multi_processor_count} SMs, capability {gpu.major}.{gpu.minor}"
    return {"gpu": f"{gpu.name}, {units}", **versions}


def numerics_of(numerics: str, model: Model | None, device: torch.device) -> dict[str, str]:
    """Values that the bits of a worker depend on, by name.

    They are the same for all workers of a generation, so that they decide alike: `attach` compares
    them.

    Args:
        numerics: The job's; if portable, results of kernels count instead of the CPU model.
        model: The job's, if its task is built in.
        device: Device of this worker.
    """
    portable = numerics == "portable" and device.type == "cpu"
    return {
        "torch": torch.__version__,
        "device": device.type,
        **(_on_gpu(device) if device.type == "cuda" else {}),
        "fp32_precision": _fp32_precision(device),
        **(kernel_digests() if portable else {"processor": model_name()}),
        "capability": torch.backends.cpu.get_cpu_capability(),
        **{name: os.environ.get(name, "unset") for name in _VARIABLES},
        **{name: _version(name) for name in _LIBRARIES if isinstance(model, MistralSpec)},
    }


def compare(group: Group, numerics: Mapping[str, str]) -> tuple[str, ...]:
    """Differences between the numerics of all members, as `name value | value`; the same on each.

    Raises:
        Aborted: The generation is over.
    """
    payloads = group.gather(WorkerTag.ATTACH, 0, json.dumps(numerics).encode())
    if len(set(payloads)) == 1:
        return ()
    found = [json.loads(payload) for payload in payloads]
    names = dict.fromkeys(name for each in found for name in each)
    values = {name: sorted({each.get(name, "none") for each in found}) for name in names}
    return tuple(f"{name} {' | '.join(each)}" for name, each in values.items() if len(each) > 1)


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


def exactness(job: TrainJob, changed: list[str]) -> str:
    """Exactness of the weights of a run; see `Progress.numerics_changes`."""
    plans = "" if job.balance == "even" else f"; balance={job.balance} affects the weights"
    if job.sync == "ddp":
        return f"not exact: sync=ddp{plans}"
    if job.numerics == "fast":
        return f"not exact: numerics=fast{plans}"
    if not changed:
        return "bit-exact"
    what = ", ".join(changed)
    if job.numerics == "mixed":
        return (
            "every sample once, replicas equal; the bits depend on which host computed which "
            f"shard: {what}"
        )
    return f"order-exact: {what}"


def _on_gpu(device: torch.device) -> dict[str, str]:
    cuda = torch.version.cuda or ""
    versions = {
        "driver": Driver().version,
        "cuda": cuda,
        "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
        "cublas": _version("nvidia-cublas-cu12" if cuda.startswith("12.") else "nvidia-cublas"),
        _CUBLAS_VARIABLE: os.environ.get(_CUBLAS_VARIABLE, "unset"),
    }
    return values_of_gpu(torch.cuda.get_device_properties(device), versions)


def _fp32_precision(device: torch.device) -> str:
    """Precision of float32 products, by library and operation; user code may change it."""
    on_gpu = device.type == "cuda"
    products: Any = torch.backends.cuda if on_gpu else torch.backends.mkldnn
    layers: Any = torch.backends.cudnn if on_gpu else torch.backends.mkldnn
    settings = {"matmul": products.matmul, "conv": layers.conv, "rnn": layers.rnn}
    return ", ".join(f"{name} {each.fp32_precision}" for name, each in settings.items())


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "missing"
