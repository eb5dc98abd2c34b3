"""Torch report: what `torch_probe` has found, and what that means for a job."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pydantic import ValidationError
from rich.filesize import decimal as in_words

from holdfast.doctor.finding import Finding, advice, fault, ok
from holdfast.doctor.needs import HostNeeds
from holdfast.launch.spawn import worker_environment
from holdfast.strict import Strict
from holdfast.tasks import reference

TIMEOUT_S: Final = 180.0
"""Time that importing torch and building the model may take."""
UNKNOWN_BYTES: Final = 64 << 20
"""Shared memory that is made for a model whose size is not known."""


class Gpu(Strict):
    """A GPU on which torch has computed something."""

    name: str
    free_bytes: int
    total_bytes: int


class ModelSize(Strict):
    """Memory that a run on one host has for its model.

    Attributes:
        replica_bytes: Bytes of weights, buffers and optimizer state, for each worker.
        shared_bytes: Bytes of the gradients that workers share.
    """

    replica_bytes: int
    shared_bytes: int


class TorchReport(Strict):
    """Findings of a process with torch.

    Attributes:
        torch, cuda, nccl: Versions; empty where there is none.
        gpus: GPUs that torch uses.
        not_mapped: Why GPUs cannot read each other's memory; empty if they can.
        numerics: Values that decide the bits of the job; see `worker.checks.numerics`.
        kernels: Digests of what this processor computes.
        size: Size of the job's model, if it is known.
        problem: Why the job's task cannot be made, if so.
    """

    torch: str
    cuda: str = ""
    nccl: str = ""
    gpus: tuple[Gpu, ...] = ()
    not_mapped: str = ""
    numerics: dict[str, str]
    kernels: dict[str, str]
    size: ModelSize | None = None
    problem: str = ""

    def arena_bytes(self, workers: int) -> int:
        """Size of the shared memory of a host with so many workers."""
        if self.size is None:
            return UNKNOWN_BYTES
        replicas = 0 if self.gpus else workers * self.size.replica_bytes
        return max(1 << 20, self.size.shared_bytes + replicas)

    @property
    def checkpoint_bytes(self) -> int:
        """Size of a checkpoint."""
        return UNKNOWN_BYTES if self.size is None else self.size.replica_bytes


def probe(job: str) -> TorchReport | Finding:
    """Have a process with torch look at a job, as YAML; a finding if it has failed."""
    remedy = "see the output above; install torch again, for this processor and driver"
    try:
        done = subprocess.run(
            [sys.executable, "-m", "holdfast.doctor.torch_probe", "--parent", str(os.getpid())],
            input=job,
            stdout=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            env={**worker_environment(), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        return TorchReport.model_validate_json(done.stdout)
    except subprocess.TimeoutExpired:
        return fault("torch", f"importing it and building the model took {TIMEOUT_S:.0f} s", remedy)
    except ValidationError:
        return fault("torch", f"a process that uses it ended with {done.returncode}", remedy)


def findings(report: TorchReport, needs: HostNeeds) -> Iterator[Finding]:
    """Findings from a report, for what a job needs of this host."""
    job = needs.job
    built = f", built for CUDA {report.cuda}" if report.cuda else ""
    yield ok("torch", f"{report.torch}{built}; {report.numerics['capability']}")
    yield _gpus(report, needs)
    if report.gpus and job.device != "cpu":
        yield _device_memory(report)
    if not needs.is_first and job.task not in reference.BUILTIN:
        yield ok("task and data", f"the run brings the code of {job.task}")
    elif report.problem:
        yield fault("task and data", report.problem, "make the job's task and data work here")
    elif report.size is None:
        yield ok("task and data", f"{job.task} imports; its size is known once it runs")
    else:
        replica = in_words(report.size.replica_bytes)
        yield ok("task and data", f"{replica} of weights and optimizer state for each worker")


def _gpus(report: TorchReport, needs: HostNeeds) -> Finding:
    job = needs.job
    workers = needs.workers
    devices = sorted(Path("/dev").glob("nvidia[0-9]*"))
    if not report.gpus:
        if job.device == "cuda" or job.resources.gpus:
            return fault(
                "gpu",
                f"torch {report.torch} finds none, and the job needs them (device, resources.gpus)",
                "install the driver and a build of torch for it, pass the GPUs to the container "
                "(--gpus all), or set device=cpu",
            )
        if devices:
            return advice(
                "gpu",
                f"{len(devices)} NVIDIA devices, which torch {report.torch} cannot use",
                "install a build of torch for CUDA, and a driver that is new enough for it",
            )
        return ok("gpu", "none")
    names = ", ".join(
        f"{each.name} ({in_words(each.free_bytes)} of {in_words(each.total_bytes)} free)"
        for each in report.gpus
    )
    if workers * job.resources.gpus > len(report.gpus):
        return fault(
            "gpu",
            f"{names}; {workers} workers with resources.gpus={job.resources.gpus} need more",
            "start fewer workers on this host, or lower resources.gpus",
        )
    if job.device != "cpu" and workers > len(report.gpus):
        return advice(
            "gpu",
            f"{names}; {workers} workers share {len(report.gpus)}",
            f"set workers={len(report.gpus) * job.hosts}",
        )
    return ok("gpu", f"{names}; NCCL {report.nccl}, driver {_driver()}")


def _device_memory(report: TorchReport) -> Finding:
    if report.not_mapped:
        return advice(
            "device memory",
            f"cannot be mapped by other processes: {report.not_mapped}. Workers of this host copy "
            "gradients through its memory (exchange=staged), and a lone worker's state is lost "
            "with it, except for snapshots",
            "free memory of the GPU, update the driver, or allow access between GPUs",
        )
    return ok(
        "device memory",
        "workers read each other's (exchange=mapped), and a lone worker's state outlives it",
    )


def _driver() -> str:
    """The version of the NVIDIA driver."""
    try:
        return Path("/sys/module/nvidia/version").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"
