"""The training loop that people write without holdfast: one process, alone or under stock DDP.

Prints when each step ended, in seconds of the machine's monotonic clock. Processes with a store
meet after their warm-up, which is not counted, and first print when they continued: all are
measured from the same moment, while the others run.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from holdfast_bench.workloads import WORKLOADS, plain_loss


def main() -> None:
    """Train; the process's rank, and those it trains with, come as options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", choices=WORKLOADS, required=True)
    parser.add_argument("--warm-steps", type=int, default=0)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world-size", type=int, required=True)
    parser.add_argument("--store", help="File where processes meet; by default they do not.")
    parser.add_argument("--ddp", action="store_true", help="Train with DDP.")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    workload = WORKLOADS[options.workload]()
    model = workload.model()
    if options.store:
        dist.init_process_group(
            "gloo",
            init_method=Path(options.store).as_uri(),
            rank=options.rank,
            world_size=options.world_size,
        )
    if options.ddp:
        model = DistributedDataParallel(model)
    optimizer = workload.optimizer(model.parameters())
    ends = []
    for step in range(options.warm_steps + options.steps):
        if options.store and step == options.warm_steps:
            dist.barrier()
            ends = [time.monotonic()]
        generator = torch.Generator().manual_seed(1_000_003 * options.rank + step)
        batch = workload.draw(options.batch, generator)
        optimizer.zero_grad()
        loss = plain_loss(workload, model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        loss.item()
        ends.append(time.monotonic())
    print(" ".join(f"{end:.6f}" for end in ends))
    if options.store:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
