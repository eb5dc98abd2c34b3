"""Collectives of all workers of a generation, through PyTorch's default process group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist

from holdfast.collectives.group import Group
from holdfast.worker.context import WorkerContext
from holdfast.worker.process_groups.cascade import await_abort, is_connection_error
from holdfast.worker.process_groups.interface import has_own_gpu, set_interface
from holdfast.worker.process_groups.rendezvous import meet

_MAX_TIMEOUT_S: Final = 10**8
"""Longest time that collectives wait, three years: gloo counts milliseconds in 64 bits."""


def join(worker: WorkerContext, device: torch.device) -> None:
    """Make the default process group, with all other members: NCCL if each has a GPU, else gloo.
    Where rows are divided, tensors of the CPU are exchanged, too.

    Args:
        worker: The worker.
        device: Device that it computes on.

    Raises:
        JobError: The port is in use.
    """
    job = worker.job
    group = worker.group
    if job.network == "trusted":
        set_interface(group)
    on_gpus = "cpu:gloo,cuda:nccl" if job.parallel.zero else "nccl"
    dist.init_process_group(
        on_gpus if has_own_gpu(job, group, device) else "gloo",
        store=meet(group, worker.agent, job.network, job.port).connect(),
        rank=group.rank,
        world_size=len(group.members),
        timeout=timedelta(seconds=min(job.timeout_s, _MAX_TIMEOUT_S)),
    )


@contextmanager
def aborts_explained(group: Group) -> Iterator[None]:
    """A context for collectives, in which a connection breaks if another worker is lost.

    Raises:
        Aborted: The generation is over.
    """
    try:
        yield
    except RuntimeError as error:
        if is_connection_error(error):
            await_abort(group)
        raise


def broadcast(memory: torch.Tensor, source: int, group: Group) -> None:
    """Send memory to all members, or receive it.

    Args:
        memory: uint8[n], the same n on every member; read by the source, written by the others.
        source: Rank of the worker that sends.
        group: The members.

    Raises:
        Aborted: The generation is over.
    """
    with aborts_explained(group):
        dist.broadcast(memory, source)
