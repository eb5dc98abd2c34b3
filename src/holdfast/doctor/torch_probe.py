"""Torch probe: what only a process with torch can tell, printed as one line of JSON.

It runs in the environment of a worker, as a process of its own: the command itself has no torch.
"""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from collections.abc import Sequence
from typing import Any, cast

import torch

from holdfast.arena.device.memory import PROBE_BYTES, allocate, open_peer, pattern
from holdfast.arena.replica import Trained, replica_layout
from holdfast.collectives.slot import SlotLayout
from holdfast.doctor.torch_report import Gpu, ModelSize, TorchReport
from holdfast.errors import HoldfastError
from holdfast.job import load
from holdfast.job.train_job import TrainJob
from holdfast.linux.lifeline import die_with_parent
from holdfast.tasks import program
from holdfast.tasks.task import FineTunes
from holdfast.worker.checks.kernels import kernel_digests
from holdfast.worker.checks.numerics import numerics_of


def main() -> None:
    """Look at torch, at GPUs, and at the job that is read from standard input."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parent", type=int, required=True)
    die_with_parent(parser.parse_args().parent)
    job = load.of_text(sys.stdin.read(), "of the command")
    assert isinstance(job, TrainJob)
    output = sys.stdout
    sys.stdout = sys.stderr  # the user's task may print
    report = _report(job)
    print(report.model_dump_json(), file=output, flush=True)
    os._exit(0)  # threads of the user's task may still run


def _report(job: TrainJob) -> TorchReport:
    gpus = [_gpu(number) for number in range(torch.cuda.device_count())]
    device = torch.device("cuda" if gpus and job.device != "cpu" else "cpu")
    size = None
    problem = ""
    try:
        size = _size(job)
    except HoldfastError as error:
        problem = str(error)
    except Exception as error:  # noqa: BLE001  # the user's task may raise anything
        problem = f"{type(error).__name__}: {error}"
    return TorchReport(
        torch=torch.__version__,
        cuda=torch.version.cuda or "",
        nccl=_nccl() if gpus else "",
        gpus=tuple(gpus),
        not_mapped=why_not_mapped([torch.device("cuda", each) for each in range(len(gpus))]),
        numerics=numerics_of(job.numerics, job.model, device),
        kernels=kernel_digests(),
        size=size,
        problem=problem,
    )


def _nccl() -> str:
    return ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]


def _gpu(number: int) -> Gpu:
    free, total = torch.cuda.mem_get_info(number)
    ones = torch.ones(1024, device=torch.device("cuda", number))
    assert float(ones.sum()) == 1024, "the GPU adds"
    return Gpu(name=torch.cuda.get_device_name(number), free_bytes=free, total_bytes=total)


def why_not_mapped(devices: Sequence[torch.device]) -> str:
    """Why the memory of each device cannot be read by all, as other processes map it; empty if it
    can.
    """
    try:
        for owner in devices:
            memory = allocate(owner, PROBE_BYTES)
            memory.bytes[:PROBE_BYTES] = pattern(1, memory.bytes[:PROBE_BYTES])
            if owner.type == "cuda":
                torch.cuda.synchronize(owner)
            for reader in devices:
                peer = open_peer(reader, os.dup(memory.fd), PROBE_BYTES)
                found = torch.empty(PROBE_BYTES, dtype=torch.uint8, device=reader)
                peer.read(0, found)
                if not torch.equal(found, pattern(1, found)):
                    return f"{reader} reads other bytes from {owner} than were written there"
                peer.close()
            os.close(memory.fd)
    except (OSError, torch.OutOfMemoryError) as error:
        return str(error)
    return ""


def _size(job: TrainJob) -> ModelSize | None:
    """Size of a run's memory; None if only the user's function knows the model."""
    task: Any = program.load(job.program, job.task)
    if not inspect.isclass(task):
        return None
    made: Any = cast("type[Any]", task)(job)
    if isinstance(made, FineTunes):
        list(made.frozen())  # raises if a file is missing; the run builds the rest
        return None
    made.training_data()  # raises if it is not here
    model = _model(made)
    trained = Trained(model=model, optimizers=(made.optimizer(model.parameters()),))
    slot = SlotLayout(dict(trained.parameters()), dict(model.named_buffers()))
    return ModelSize(
        replica_bytes=replica_layout(trained).size_bytes,
        shared_bytes=(job.workers * job.num_published + 1) * slot.layout.size_bytes,
    )


def _model(task: Any) -> torch.nn.Module:
    """Its model, with shapes but no data where that is possible."""
    try:
        with torch.device("meta"):
            model: torch.nn.Module = task.model()
    except (TypeError, RuntimeError, NotImplementedError):  # it looks at values
        model = task.model()
    return model


if __name__ == "__main__":
    main()
