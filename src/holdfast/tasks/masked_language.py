"""Masked language modelling on bytes: guess the hidden bytes of a text from those around them."""

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
from holdfast.data.masking import Masked
from holdfast.data.text import Windows
from holdfast.errors import JobError
from holdfast.job.data import TextData
from holdfast.job.models import Bert
from holdfast.job.spec import Job
from holdfast.tasks import optimizers


class MaskedLanguageModelling:
    """The task of the built-in job `bert`.

    Raises:
        JobError: The job names no text or no model that looks both ways.
    """

    def __init__(self, job: Job) -> None:
        if not isinstance(job.data, TextData) or not isinstance(job.model, Bert):
            raise JobError("task masked-language needs data.name=text and model.name=bert")
        self._data, self._model, self._optimizer = job.data, job.model, job.optimizer

    def model(self) -> nn.Module:
        return models.build_language_model(self._model, context=self._data.length)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        return optimizers.build(self._optimizer, parameters)

    def training_data(self) -> Masked:
        return Masked(self._windows[0])

    def test_data(self) -> Masked:
        return Masked(self._windows[1])

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        x, y = batch
        return F.cross_entropy(model(x).flatten(0, 1), y.flatten())

    def measure(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        loss = float(self.loss(model, batch))
        baseline = self._windows[1].byte_entropy / math.log(2)
        return {
            "test_loss": loss,
            "bits_per_byte": loss / math.log(2),
            "byte_entropy_bits": baseline,
        }

    @cached_property
    def _windows(self) -> tuple[Windows, Windows]:
        return catalog.build_text(self._data)
