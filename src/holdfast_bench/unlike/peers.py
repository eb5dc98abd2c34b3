"""One process that trains on an emulated device without holdfast, under stock DDP or for itself.

DDP     an equal part of the batch each, in one pass; gradients are averaged over gloo
bound   the part that its speed says, shard by shard as holdfast computes it, and no exchange
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from holdfast_bench.peers.peer_script import join_group
from holdfast_bench.unlike.models import Training


def main() -> None:
    """Train one rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--training", type=json.loads, required=True, help="JSON of `Training`.")
    parser.add_argument("--counts", type=json.loads, required=True, help="Shards of each process.")
    parser.add_argument("--ddp", action="store_true", help="Train together.")
    parser.add_argument("--merges", action="store_true", help="Compute the shards in one pass.")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world-size", type=int, required=True)
    train(parser.parse_args())


def train(options: argparse.Namespace) -> None:
    """Train as people do without holdfast.

    Without DDP, a process trains on until all have done their steps, so that all are measured while
    the others run.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    training = Training.of_params(options.training)
    workload, device, log = training.begin(options.rank)
    model = workload.model()
    count = options.counts[options.rank]
    size = workload.batch_size
    batches = [size * count] if options.merges else [size] * count
    store = join_group(Path(training.folder), options.rank, options.world_size)
    if options.ddp:
        model = DistributedDataParallel(model)
    optimizer = workload.optimizer(model.parameters())
    generator = torch.Generator().manual_seed(options.rank)
    dist.barrier()
    step = 0
    while step < training.steps or (
        not options.ddp and store.add("trained", 0) < options.world_size
    ):
        optimizer.zero_grad()
        for size in batches:
            batch = workload.draw(size, generator)
            with device.slowed():
                (workload.loss(model, batch) / len(batches)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        log.add(shards=count, samples=sum(batches))
        log.end_step()
        step += 1
        if step == training.steps:
            store.add("trained", 1)
    dist.barrier()  # the others have what they need of this process
    os._exit(0)  # DDP may end with the interpreter's lock, for which a thread of gloo waits


if __name__ == "__main__":
    main()
