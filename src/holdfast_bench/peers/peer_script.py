"""A plain script as people write it for torchrun, under stock DDP on gloo.

It logs its steps as `holdfast_bench.launch` reads them. It trains until it is killed and writes a
checkpoint every ten steps; with `--steps` it trains so many and writes none. With `--world-size`
processes meet after their warm-up, which is not counted, so all are measured from the same moment.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import FileStore  # type: ignore[attr-defined]  # its stubs leave it out
from torch.nn.parallel import DistributedDataParallel

from holdfast.rundir.json_lines import JsonLines
from holdfast_bench.workloads import WORKLOADS, Workload, plain_loss

EVERY: Final = 10
"""Steps from one checkpoint to the next."""


def main() -> None:
    """Train until killed, or for some steps."""
    parser = option_parser(__doc__)
    parser.add_argument("--warm-steps", type=int, default=0)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world-size", type=int)
    parser.add_argument("--ddp", action="store_true", help="Train with DDP.")
    options = parser.parse_args()
    if options.steps is None:
        train_until_killed(WORKLOADS[options.workload](), options.dir)
    else:
        train_steps(options)


def option_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser of the options that every such script has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--workload", choices=WORKLOADS, required=True)
    parser.add_argument("--dir", type=Path, required=True)
    return parser


def train_until_killed(workload: Workload, folder: Path) -> None:
    """Train as torchrun says; continue from a checkpoint if there is one."""
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(workload.model())
    optimizer = workload.optimizer(model.parameters())
    checkpoint = folder / "checkpoint.safetensors"
    step = load(checkpoint, model.module, optimizer) if checkpoint.exists() else 0
    with JsonLines(folder / f"rank-{rank}.jsonl") as log:
        while True:
            began = time.monotonic()
            train_step(workload, model, optimizer, rank, step)
            step += 1
            log_step(log, step, dist.get_world_size(), began)
            if step % EVERY == 0 and rank == 0:
                save(checkpoint, model.module, optimizer, step)


def train_steps(options: argparse.Namespace) -> None:
    """Train some steps."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    workload = WORKLOADS[options.workload]()
    model = workload.model()
    if options.world_size:
        join_group(options.dir, options.rank, options.world_size)
    if options.ddp:
        model = DistributedDataParallel(model)
    optimizer = workload.optimizer(model.parameters())
    with JsonLines(options.dir / f"rank-{options.rank}.jsonl") as log:
        for step in range(options.warm_steps + options.steps):
            if options.world_size and step == options.warm_steps:
                dist.barrier()
            began = time.monotonic()
            train_step(workload, model, optimizer, options.rank, step, options.batch)
            log_step(log, step + 1, options.world_size, began)
    os._exit(0)  # gloo may abort a process at its end


def join_group(folder: Path, rank: int, world_size: int) -> FileStore:
    """Join a process group on gloo whose processes meet through a file; returns its store."""
    store = FileStore(str(folder / "store"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    return store


def train_step(
    workload: Workload,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    rank: int,
    step: int,
    batch_size: int | None = None,
) -> None:
    """One step on samples that only rank and step determine."""
    generator = torch.Generator().manual_seed(1_000_003 * rank + step)
    batch = workload.draw(batch_size or workload.batch_size, generator)
    optimizer.zero_grad()
    loss = plain_loss(workload, model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    loss.item()


def log_step(log: JsonLines, step: int, world: int | None, began: float) -> None:
    """Log that a step is done."""
    log.write(pid=os.getpid(), step=step, world=world, began=began, ended=time.monotonic())


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Write a checkpoint that replaces the last one."""
    from safetensors.torch import save_file  # not in the time to the first step

    draft = path.with_suffix(".tmp")
    save_file(state_of(model, optimizer) | {"step": torch.tensor(step)}, draft)
    draft.replace(path)


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The tensors of a model and its optimizer, by name."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for index, values in optimizer.state_dict()["state"].items():
        tensors |= {f"state.{index}.{name}": value for name, value in values.items()}
    return tensors


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Restore a checkpoint; returns its step."""
    from safetensors.torch import load_file

    tensors = load_file(path)
    step = int(tensors.pop("step"))
    state: dict[int, dict[str, torch.Tensor]] = {}
    weights = {}
    for key, value in tensors.items():
        kind, _, name = key.partition(".")
        if kind == "model":
            weights[name] = value
        else:
            index, _, part = name.partition(".")
            state.setdefault(int(index), {})[part] = value
    model.load_state_dict(weights)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    return step


if __name__ == "__main__":
    main()
