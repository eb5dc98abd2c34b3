"""Thread time of a step beyond a plain loop: what bookkeeping costs the worker's thread.

    gpt-2       148 parameters, AdamW                            GPT-2's shape at width 48
    resnet-50   161 parameters and 159 buffers, SGD, momentum    ResNet-50's shape at width 4

One worker on one core trains on the CPU. Its process takes turns with a plain loop, which trains
another model of the same shape on as many batches and adds up their gradients; a turn is 16 steps.
A tensor has few elements, so that little of the time depends on their number.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn, optim

from holdfast_bench.arguments import add_names, add_rounds, count, counts
from holdfast_bench.results.figures import spread
from holdfast_bench.results.result import Measured
from holdfast_bench.trial import train
from holdfast_bench.workloads import Images, RandomDataset, Tokens, Workload, plain_loss

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.worker.session import Session

TURN: Final = 16
"""Steps of a turn: some checks are made in one step of 16."""
WARM_TURNS: Final = 2
"""Turns at the start that are not counted."""


class Gpt2(Tokens):
    """Twelve transformer blocks of width 48 over 8 of 64 tokens."""

    batch_size = 1
    vocabulary = 64

    def model(self) -> nn.Module:
        from holdfast.models.gpt import Gpt

        sizes = {"vocabulary": self.vocabulary, "context": 64, "width": 48, "heads": 4}
        return Gpt(**sizes, layers=12, dropout=0.0, gradient_checkpointing=False)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        return optim.AdamW(parameters, lr=1e-4, fused=True)

    def draw(self, count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = super().draw(count, generator)
        return x[:, :8], y[:, :8]


class ResNet50(Images):
    """ResNet-50 with a sixteenth of its channels, over images of 3x8x8."""

    batch_size = 2

    def model(self) -> nn.Module:
        from holdfast.models.resnet import Bottleneck, ResNet

        sizes = {"channels": 3, "width": 4, "classes": self.classes}
        depths = (3, 4, 6, 3)
        return ResNet(Bottleneck, depths, **sizes, large=False, gradient_checkpointing=False)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        return optim.SGD(parameters, lr=1e-3, momentum=0.9, fused=True)

    def draw(self, count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = super().draw(count, generator)
        return x[..., :8, :8], y


SHAPES: Final[dict[str, type[Workload]]] = {"gpt-2": Gpt2, "resnet-50": ResNet50}


class PlainLoop:
    """A loop as its users write it without holdfast.

    Args:
        workload: What it trains.
        shards: Batches whose gradients it adds up.
    """

    def __init__(self, workload: Workload, shards: int) -> None:
        self._workload = workload
        self._model = workload.model()
        self._optimizer = workload.optimizer(self._model.parameters())
        chance = torch.Generator().manual_seed(0)
        self._batches = [workload.draw(workload.batch_size, chance) for _ in range(shards)]

    def turn_ms(self) -> float:
        """Train for a turn; returns the thread time of a step."""
        began = time.thread_time()
        for _ in range(TURN):
            self._optimizer.zero_grad()
            for batch in self._batches:
                loss = plain_loss(self._workload, self._model, batch)
                (loss / len(self._batches)).backward()  # type: ignore[no-untyped-call]  # torch's
            self._optimizer.step()
        return 1000 * (time.thread_time() - began) / TURN


def measured(session: Session) -> None:
    """Train, and write the thread time of a step, of this loop and of a plain one, by turn."""
    params = session.job.params
    workload = SHAPES[params["shape"]]()
    model, _ = session.attach(workload.model, workload.optimizer)
    plain = PlainLoop(workload, session.job.shards)
    samples = RandomDataset(workload, session.job.batch * TURN)
    turns = list[tuple[float, float]]()
    step = -1
    began = 0.0
    for shard in session.shards(samples, steps=TURN * (WARM_TURNS + params["turns"]) + 1):
        if shard.step % TURN == 0 and shard.step != step:
            ours_ms = 1000 * (time.thread_time() - began) / TURN
            turns.append((ours_ms, plain.turn_ms()))
            began = time.thread_time()
        step = shard.step
        session.backward(workload.loss(model, shard.batch))
    # The first one has no turn of ours before it.
    Path(params["file"]).write_text(json.dumps(turns[1 + WARM_TURNS :]))


def turns_of(shape: str, shards: int, turns: int) -> list[tuple[float, float]]:
    """One run: the thread time of a step of ours and of a plain one, ms, by turn."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "turns.json"
        job = {
            "name": "host",
            "task": f"holdfast_bench.host:{measured.__name__}",
            "params": {"shape": shape, "turns": turns, "file": str(file)},
            "batch": SHAPES[shape].batch_size * shards,
            "shards": shards,
            "device": "cpu",
            "threads_per_worker": 1,
            "checkpoint": {"every_steps": 0},
        }
        with train(job):
            return [(ours, plain) for ours, plain in json.loads(file.read_text())]


def rows_of(shape: str, shards: Sequence[int], turns: int, rounds: int) -> list[dict[str, Any]]:
    """One row per number of shards."""
    rows = list[dict[str, Any]]()
    for number in shards:
        print(f"{shape}, {number} shards", file=sys.stderr)
        runs = [turns_of(shape, number, turns) for _ in range(rounds)]
        beyond = [statistics.median(ours - plain for ours, plain in each) for each in runs]
        rows.append(
            {
                "shape": shape,
                "shards": number,
                "ours_ms": spread([statistics.median(o for o, _ in each) for each in runs], 2),
                "plain_ms": spread([statistics.median(p for _, p in each) for each in runs], 2),
                "beyond_ms": spread(beyond, 2),
            }
        )
        further = number - rows[0]["shards"]
        if further:
            more_ms = rows[-1]["beyond_ms"]["median"] - rows[0]["beyond_ms"]["median"]
            rows[-1]["further_shard_ms"] = round(more_ms / further, 2)
    return rows


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_names(parser, "--shapes", SHAPES, "Models to train")
    parser.add_argument("--shards", type=counts, default="1,2,4", help="Shards of a step.")
    parser.add_argument("--turns", type=count, default=8, help="Number of measured turns.")
    add_rounds(parser, 3)


def run(options: argparse.Namespace) -> Measured:
    """Measure every shape with every number of shards."""
    rows = [
        row
        for shape in options.shapes
        for row in rows_of(shape, options.shards, options.turns, options.rounds)
    ]
    return Measured(rounds=options.rounds, rows=rows)
