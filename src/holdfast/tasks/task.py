"""The `Task` protocol. A task class is constructed with the job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn
from torch.optim import Optimizer

from holdfast.data.dataset import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenTensors:
    """Tensors that a task needs and does not train; see `Session.base`.

    Attributes:
        name: Their name.
        key: Values that determine them, as plain data.
        build: Yields them by name.
        cache: Directory for them; None for the run's.
    """

    name: str
    key: Mapping[str, Any]
    build: Callable[[], Iterable[tuple[str, torch.Tensor]]]
    cache: Path | None


@runtime_checkable
class FineTunes(Protocol):
    """A task whose model is built around frozen tensors.

    Attributes:
        tensors: Tensors of `frozen`, by the name and the tensor's name; set before all else is
            called.
        metrics: What an evaluation computes of what `measure` returned for all samples, by name.
    """

    tensors: Mapping[str, Mapping[str, torch.Tensor]]
    metrics: Mapping[str, Any]

    def frozen(self) -> Iterable[FrozenTensors]:
        """Libraries and sizes that the model needs."""


class Task(Protocol):
    """Model, loss and data of a training job."""

    def model(self) -> nn.Module:
        """A new model; its initial weights come from torch's global generator."""

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """A new optimizer over the model's parameters."""

    def training_data(self) -> object:
        """The data set to train on: a `Dataset`, or any map-style PyTorch data set."""

    def test_data(self) -> object | None:
        """The data set to evaluate on, or None."""

    def loss(
        self, model: nn.Module, batch: Batch
    ) -> torch.Tensor | tuple[torch.Tensor, Mapping[str, float]]:
        """The mean loss over the samples of `batch`, a scalar; or this and, by name, further means
        that are logged.
        """

    def measure(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        """Metrics as means over the samples of `batch`, such as the accuracy."""
