"""A task whose compute is a sleep, layer by layer: its gradient is reduced and committed like any
other.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import nn, optim

from holdfast.data.dataset import Batch
from holdfast.data.permutation import Indices
from holdfast.job.train_job import TrainJob

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class Numbers:
    """Samples that are their own numbers.

    Args:
        size: How many.
    """

    reads_ahead = True

    def __init__(self, size: int) -> None:
        self._size = size
        self.fingerprint = f"numbers:{size}"

    def __len__(self) -> int:
        return self._size

    def batch(self, indices: Indices, generator: torch.Generator) -> Batch:  # noqa: ARG002
        """`(x,)`, int64[n]."""
        return (torch.from_numpy(indices),)


LAYERS: Final = 16
"""Layers of the model: its gradient is computed one after the other, as a real one's."""
IN_FORWARD: Final = 1 / 3
"""Share of the compute time in forward passes: a backward pass takes twice as long."""


class _Compute(torch.autograd.Function):
    """Sleeps for as long as a layer computes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        time.sleep(seconds * IN_FORWARD)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(ctx.seconds * (1 - IN_FORWARD))
        return gradient, None


class Weights(nn.Module):
    """Layers of parameters without a purpose.

    Args:
        count: Number of parameters.
        dtype: Their dtype.
    """

    def __init__(self, count: int, dtype: torch.dtype) -> None:
        super().__init__()
        sizes = [count // LAYERS + (layer < count % LAYERS) for layer in range(LAYERS)]
        self.weights = nn.ParameterList(torch.zeros(size, dtype=dtype) for size in sizes)

    def forward(self, seconds: float) -> torch.Tensor:
        """The loss, after `seconds` of computing, which its gradient takes, too."""
        x = torch.zeros(())
        for weight in self.weights:
            x = _Compute.apply(x + weight.square().sum().float(), seconds / LAYERS)  # type: ignore[no-untyped-call]
        return x


class EmulatedTask:
    """Sleeps for as long as a step of one host computes, and has a gradient of some size.

    `params` of the job: `parameters` and their `dtype`, `compute_s` of a shard, `spread` of it (the
    standard deviation as a share) and the number of `steps`.
    """

    def __init__(self, job: TrainJob) -> None:
        self._params = job.params
        self._size = job.batch * job.params["steps"]

    def model(self) -> nn.Module:
        return Weights(self._params["parameters"], DTYPES[self._params["dtype"]])

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        return optim.SGD(parameters, lr=1e-3)

    def training_data(self) -> Numbers:
        return Numbers(self._size)

    def test_data(self) -> None:
        return None

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        chance = random.Random(int(batch[0][0]))  # the same in every run
        compute_s = self._params["compute_s"] * (1 + self._params["spread"] * chance.gauss(0, 1))
        loss: torch.Tensor = model(max(0.0, compute_s))
        return loss

    def measure(self, model: nn.Module, batch: Batch) -> dict[str, float]:  # noqa: ARG002
        return {"loss": float(model(0.0))}
