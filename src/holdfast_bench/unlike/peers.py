"""Processes that train on the same devices without holdfast, under stock DDP or each for itself.

DDP     an equal part of the batch each, in one pass; gradients are averaged over gloo
bound   the part that its speed says, shard by shard as holdfast computes it, and no exchange
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from holdfast.errors import HoldfastError
from holdfast_bench.unlike.models import Training

TIMEOUT_S: Final = 300.0
_FORKS: Final = multiprocessing.get_context("forkserver")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTraining:
    """Work of the processes.

    Attributes:
        training: What all systems do.
        counts: Shards of a step for each process.
        ddp: True if they train together.
        merges: True if a process computes its shards in one pass.
    """

    training: Training
    counts: tuple[int, ...]
    ddp: bool
    merges: bool


def run(peer: PeerTraining) -> None:
    """Train in as many processes as there are counts; their logs are written when this returns.

    Raises:
        HoldfastError: A process failed, or took too long.
    """
    _FORKS.set_forkserver_preload([__name__])  # imports torch once
    workers = len(peer.counts)
    start = _FORKS.Barrier(workers)
    trained = _FORKS.Value("i", 0)
    processes = [
        _FORKS.Process(target=train, args=(peer, rank, start, trained)) for rank in range(workers)
    ]
    try:
        for process in processes:
            process.start()
        _join(processes)
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()


def _join(processes: Sequence[BaseProcess]) -> None:
    """Wait for all; returns early if one fails, for which the others would wait in vain."""
    deadline = time.monotonic() + TIMEOUT_S
    waiting = list(processes)
    while waiting:
        waiting[0].join(0.5)
        for process in waiting:
            if process.exitcode:
                raise HoldfastError(
                    f"a process of the benchmark exited with status {process.exitcode}; its error "
                    "is above"
                )
        waiting = [process for process in waiting if process.exitcode is None]
        if waiting and time.monotonic() > deadline:
            raise HoldfastError(f"a process of the benchmark did not end within {TIMEOUT_S:.0f} s")


def train(peer: PeerTraining, rank: int, start: Barrier, trained: Synchronized[int]) -> None:
    """The loop that people write without holdfast.

    Args:
        peer: What to do.
        rank: Of this process.
        start: Where all processes begin to train.
        trained: How many have done all their steps. Without DDP, a process trains on until all
            have, so that all are measured while the others run.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    workload, device, log = peer.training.begin(rank)
    model = workload.model()
    count = peer.counts[rank]
    size = workload.batch_size
    batches = [size * count] if peer.merges else [size] * count
    if peer.ddp:
        store = (Path(peer.training.folder) / "store").as_uri()
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=len(peer.counts))
        model = DistributedDataParallel(model)
    optimizer = workload.optimizer(model.parameters())
    generator = torch.Generator().manual_seed(rank)
    start.wait(TIMEOUT_S)
    step = 0
    while step < peer.training.steps or (not peer.ddp and trained.value < len(peer.counts)):
        optimizer.zero_grad()
        for size in batches:
            batch = workload.draw(size, generator)
            with device.slowed():
                (workload.loss(model, batch) / len(batches)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        log.add(shards=count, samples=sum(batches))
        log.end_step()
        step += 1
        if step == peer.training.steps:
            with trained.get_lock():
                trained.value += 1
    if peer.ddp:
        dist.destroy_process_group()
