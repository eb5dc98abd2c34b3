"""A plain script as people write it for torchrun; `bench.restart` and `bench.peers` launch it.

Stock DDP on gloo, a checkpoint every ten steps. Each rank logs its steps as
`bench.peers.faulted_script` reads them.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from holdfast.rundir.json_lines import JsonLines
from holdfast_bench.workloads import WORKLOADS, Workload, plain_loss

EVERY: Final = 10
"""Steps from one checkpoint to the next."""


def main() -> None:
    """Train until killed."""
    options = option_parser(__doc__).parse_args()
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    workload = WORKLOADS[options.workload]()
    model = DistributedDataParallel(workload.model())
    optimizer = workload.optimizer(model.parameters())
    checkpoint = options.dir / "checkpoint.safetensors"
    step = load(checkpoint, model.module, optimizer) if checkpoint.exists() else 0
    with JsonLines(options.dir / f"rank-{rank}.jsonl") as log:
        while True:
            began = time.monotonic()
            train_step(workload, model, optimizer, rank, step)
            step += 1
            log_step(log, step, dist.get_world_size(), began)
            if step % EVERY == 0 and rank == 0:
                save(checkpoint, model.module, optimizer, step)


def option_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser of the options that every such script has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--workload", choices=WORKLOADS, required=True)
    parser.add_argument("--dir", type=Path, required=True)
    return parser


def train_step(
    workload: Workload, model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int
) -> None:
    """One step on samples that only rank and step determine."""
    generator = torch.Generator().manual_seed(1_000_003 * rank + step)
    batch = workload.draw(workload.batch_size, generator)
    optimizer.zero_grad()
    loss = plain_loss(workload, model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    loss.item()


def log_step(log: JsonLines, step: int, world: int, began: float) -> None:
    """Log that a step is done."""
    log.write(pid=os.getpid(), step=step, world=world, began=began, ended=time.monotonic())


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Write a checkpoint that replaces the last one."""
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
