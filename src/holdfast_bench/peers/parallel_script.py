"""Stock PyTorch for a model that is divided over the workers, as people write it for torchrun.

    fsdp2    `fully_shard`: each worker keeps its rows of every parameter and of the moments
    1f1b     one stage of the layers a worker, in PyTorch's schedule 1F1B
    gpipe    the same in the schedule GPipe

It logs its steps as `holdfast_bench.launch` reads them. It trains until it is killed and saves a
checkpoint with DCP every ten steps; with `--steps` it trains so many and saves none.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Final, Protocol

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from holdfast.models.gpt import Gpt
from holdfast.rundir.json_lines import JsonLines
from holdfast_bench.peers.peer_script import EVERY, log_step, option_parser, train_step
from holdfast_bench.workloads import WORKLOADS, Workload

SCHEDULES: Final = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}
FLAT: Final = StateDictOptions(flatten_optimizer_state_dict=True)
"""Optimizers of all stages fit into one checkpoint."""


class Divided(Protocol):
    """A model of which each worker has a part.

    Attributes:
        part: This worker's part.
        optimizer: Its optimizer.
    """

    part: nn.Module
    optimizer: torch.optim.Optimizer

    def step(self, number: int) -> None:
        """Train one step."""
        ...


class Rows:
    """Rows of every parameter, gathered unit by unit: FSDP2.

    The units are the parts of a sequence, and what is outside of it.
    """

    def __init__(self, workload: Workload) -> None:
        self.part = workload.model()
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        sequence = self.part.blocks if isinstance(self.part, Gpt) else self.part
        for unit in sequence.children():
            if any(True for _ in unit.parameters()):
                fully_shard(unit, mesh=mesh)
        fully_shard(self.part, mesh=mesh)
        self.optimizer = workload.optimizer(self.part.parameters())
        self._workload = workload

    def step(self, number: int) -> None:
        train_step(self._workload, self.part, self.optimizer, dist.get_rank(), number)


class Stage:
    """Some of the layers; every microbatch passes through the workers in turn."""

    def __init__(self, workload: Workload, schedule: str, microbatches: int) -> None:
        rank, stages = dist.get_rank(), dist.get_world_size()
        self.part = stage_of(workload.model(), rank, stages)
        self.optimizer = workload.optimizer(self.part.parameters())
        self._workload = workload
        self._batch = workload.batch_size * stages
        self._is_last = rank == stages - 1
        stage = PipelineStage(self.part, rank, stages, torch.device("cpu"))
        self._schedule = SCHEDULES[schedule](stage, microbatches, loss_fn=self._loss)

    def step(self, number: int) -> None:
        x, target = self._workload.draw(self._batch, torch.Generator().manual_seed(number))
        self.optimizer.zero_grad()
        if self._is_last:
            losses: list[torch.Tensor] = []
            self._schedule.step(target=target, losses=losses)
            torch.stack(losses).mean().item()
        else:
            self._schedule.step(x) if dist.get_rank() == 0 else self._schedule.step()
        if isinstance(self.part, GptStage):
            dist.all_reduce(self.part.tokens.weight.grad)  # both of its uses
        self.optimizer.step()

    def _loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self._workload.loss(nn.Identity(), (output, target))


class GptStage(nn.Module):
    """Some blocks of a `Gpt`. The first stage and the last one have its embedding.

    Args:
        model: The whole.
        first, last: Range of its blocks; the last one is not included.
    """

    def __init__(self, model: Gpt, first: int, last: int) -> None:
        super().__init__()
        self.tokens = model.tokens
        self.blocks = nn.ModuleDict({str(at): model.blocks[at] for at in range(first, last)})
        self.positions = model.positions if first == 0 else None
        self.norm = model.norm if last == len(model.blocks) else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.positions is not None:
            x = self.tokens(x) + self.positions.weight[: x.shape[1]]
        for block in self.blocks.values():
            x = block(x)
        return x if self.norm is None else F.linear(self.norm(x), self.tokens.weight)


def stage_of(model: nn.Module, rank: int, stages: int) -> nn.Module:
    """One of the stages of a model, with about as many multiplications as the others."""
    if isinstance(model, Gpt):
        assert stages == 2
        middle = 4  # the output layer costs as much as two of six blocks
        return GptStage(model, *((0, middle) if rank == 0 else (middle, len(model.blocks))))
    assert isinstance(model, nn.Sequential)
    layers = len(model) + 1
    part = nn.Sequential()
    for at in range(layers * rank // stages, min(len(model), layers * (rank + 1) // stages)):
        part.add_module(str(at), model[at])
    return part


def main() -> None:
    """Train until killed, or for some steps."""
    parser = option_parser(__doc__)
    parser.add_argument("--way", choices=("fsdp2", *SCHEDULES), required=True)
    parser.add_argument("--microbatches", type=int, required=True)
    parser.add_argument("--steps", type=int)
    options = parser.parse_args()
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    workload = WORKLOADS[options.workload]()
    model: Divided = (
        Rows(workload)
        if options.way == "fsdp2"
        else Stage(workload, options.way, options.microbatches)
    )
    checkpoints = options.dir / "dcp"
    step = restore(checkpoints, model)
    with JsonLines(options.dir / f"rank-{dist.get_rank()}.jsonl") as log:
        while step != options.steps:
            began = time.monotonic()
            model.step(step)
            step += 1
            log_step(log, step, dist.get_world_size(), began)
            if options.steps is None and step % EVERY == 0:
                checkpoint(checkpoints, model, step)
    dist.barrier()
    os._exit(0)  # gloo may abort a process at its end


def checkpoint(folder: Path, model: Divided, step: int) -> None:
    """Write a checkpoint that replaces the last one."""
    weights, moments = get_state_dict(model.part, model.optimizer, options=FLAT)
    save({"model": weights, "optimizer": moments}, checkpoint_id=folder / str(step))
    if dist.get_rank() == 0:
        shutil.rmtree(folder / str(step - EVERY), ignore_errors=True)


def restore(folder: Path, model: Divided) -> int:
    """Restore the newest checkpoint; returns its step, 0 if there is none."""
    step = max((int(each.parent.name) for each in folder.glob("*/.metadata")), default=0)
    if step:
        weights, moments = get_state_dict(model.part, model.optimizer, options=FLAT)
        load({"model": weights, "optimizer": moments}, checkpoint_id=folder / str(step))
        set_state_dict(
            model.part,
            model.optimizer,
            model_state_dict=weights,
            optim_state_dict=moments,
            options=FLAT,
        )
    return step


if __name__ == "__main__":
    main()
