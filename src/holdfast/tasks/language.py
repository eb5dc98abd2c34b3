"""Language modelling on bytes: predict each byte of a text from those before it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Optimizer

from holdfast import models
from holdfast.data import catalog
from holdfast.data.dataset import Batch
from holdfast.data.text import Windows
from holdfast.errors import JobError
from holdfast.job.data import TextData
from holdfast.job.models import Gpt, Gpt2
from holdfast.job.spec import Job
from holdfast.tasks import optimizers


class LanguageModelling:
    """The task of the built-in jobs `text` and `gpt2`.

    Raises:
        JobError: The job names no text or no language model.
    """

    def __init__(self, job: Job) -> None:
        if not isinstance(job.data, TextData) or not isinstance(job.model, Gpt | Gpt2):
            raise JobError("task language needs data.name=text and model.name=gpt or gpt2")
        self._data, self._model, self._optimizer = job.data, job.model, job.optimizer

    def model(self) -> nn.Module:
        return models.build_language_model(self._model, context=self._data.length)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        return optimizers.build(self._optimizer, parameters)

    def training_data(self) -> Windows:
        return self._windows[0]

    def test_data(self) -> Windows:
        return self._windows[1]

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        x, y = batch
        return F.cross_entropy(model(x).flatten(0, 1), y.flatten())

    def measure(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        loss = float(self.loss(model, batch))
        baseline = self.test_data().byte_entropy / math.log(2)
        return {
            "test_loss": loss,
            "bits_per_byte": loss / math.log(2),
            "byte_entropy_bits": baseline,
        }

    @cached_property
    def _windows(self) -> tuple[Windows, Windows]:
        return catalog.build_text(self._data)
