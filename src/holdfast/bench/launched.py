"""A plain script as people write it for torchrun; `bench.restart` has it launched.

Stock DDP on gloo, a checkpoint every ten steps. Each rank appends a line a step to its file: its
process, the step, and when it was done, seconds of the machine's monotonic clock.
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

from holdfast.bench.workloads import WORKLOADS
from holdfast.observe.lines import JsonLines

EVERY: Final = 10
"""Steps from one checkpoint to the next."""


def main() -> None:
    """Train until somebody ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", choices=WORKLOADS, required=True)
    parser.add_argument("--dir", type=Path, required=True)
    options = parser.parse_args()
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    workload = WORKLOADS[options.workload]()
    model = DistributedDataParallel(workload.model())
    optimizer = workload.optimizer(model.parameters())
    checkpoint = options.dir / "checkpoint.safetensors"
    step = _load(checkpoint, model.module, optimizer) if checkpoint.exists() else 0
    with JsonLines(options.dir / f"rank-{rank}.jsonl") as lines:
        while True:
            generator = torch.Generator().manual_seed(1_000_003 * rank + step)
            batch = workload.draw(workload.batch_size, generator)
            optimizer.zero_grad()
            loss = workload.loss(model, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            loss.item()
            step += 1
            lines.write(pid=os.getpid(), step=step, at=time.monotonic())
            if step % EVERY == 0 and rank == 0:
                _save(checkpoint, model.module, optimizer, step)


def _save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for index, values in optimizer.state_dict()["state"].items():
        tensors |= {f"state.{index}.{name}": value for name, value in values.items()}
    draft = path.with_suffix(".tmp")
    save_file(tensors | {"step": torch.tensor(step)}, draft)
    draft.replace(path)


def _load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Takes over what a checkpoint holds; returns its step."""
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
