"""The `Task` protocol. A task class is constructed with the job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from holdfast.data.dataset import Batch


class Task(Protocol):
    """Model, loss and data of a training job."""

    def model(self) -> nn.Module:
        """A new model; its initial weights come from torch's global generator."""
        ...

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """A new optimizer over the model's parameters."""
        ...

    def training_data(self) -> object:
        """The data set to train on: a `Dataset`, or any map-style PyTorch data set."""
        ...

    def test_data(self) -> object | None:
        """The data set to evaluate on, or None."""
        ...

    def loss(
        self, model: nn.Module, batch: Batch
    ) -> torch.Tensor | tuple[torch.Tensor, Mapping[str, float]]:
        """The mean loss over the samples of `batch`, a scalar; or this and, by name, further means
        that are logged.
        """
        ...

    def measure(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        """Metrics as means over the samples of `batch`, such as the accuracy."""
        ...
