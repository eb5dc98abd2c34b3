"""A task whose compute is a sleep: its gradient is reduced and committed like any other."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable

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


class Weights(nn.Module):
    """Parameters without a purpose.

    Args:
        count: How many.
        dtype: Their dtype.
    """

    def __init__(self, count: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(count, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        return self.weight.square().sum()


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
        time.sleep(max(0.0, compute_s))
        loss: torch.Tensor = model(batch[0]).float()
        return loss

    def measure(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        return {"loss": float(model(batch[0]))}
