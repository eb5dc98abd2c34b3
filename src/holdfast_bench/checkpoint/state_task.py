"""StateTask: a task whose state has any size, and whose training takes no time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import TensorDataset

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.data.dataset import Batch
    from holdfast.job.train_job import TrainJob

TENSOR_MB: Final = 50


class _Bulky(nn.Module):
    """A linear layer, and `mb` megabytes of frozen parameters."""

    def __init__(self, mb: int) -> None:
        super().__init__()
        sizes = [min(TENSOR_MB, mb - begun) for begun in range(0, mb, TENSOR_MB)]
        self.layer = nn.Linear(1, 1)
        self.bulk = nn.ParameterList(
            nn.Parameter(torch.rand(size, 250_000), requires_grad=False) for size in sizes
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = self.layer(x)
        return value


class StateTask:
    """`params.mb` is the size of the state, megabytes."""

    def __init__(self, job: TrainJob) -> None:
        self._mb = int(job.params["mb"])

    def model(self) -> nn.Module:
        return _Bulky(self._mb)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        return optim.SGD(parameters, lr=0.1)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        return F.mse_loss(model(batch[0]), batch[1])

    def training_data(self) -> TensorDataset:
        return TensorDataset(torch.ones(1, 1), torch.ones(1, 1))

    def test_data(self) -> None:
        return None

    def measure(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        return {"loss": float(self.loss(model, batch))}


def state_job(mb: int) -> dict[str, Any]:
    """The keys of a job of one step with a state of so many megabytes."""
    return {
        "name": "state",
        "task": f"{__name__}:{StateTask.__name__}",
        "params": {"mb": mb},
        "batch": 1,
        "checkpoint": {"every_steps": 0},
    }
