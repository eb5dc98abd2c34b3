"""Classification: images or feature vectors, with the built-in models and data sets."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Optimizer

from holdfast import models
from holdfast.data import catalog
from holdfast.data.dataset import Batch
from holdfast.data.images import Images, Splits
from holdfast.errors import JobError
from holdfast.job.data import LabelledData
from holdfast.job.models import CnnSpec, MlpSpec, ResnetSpec
from holdfast.job.train_job import TrainJob
from holdfast.tasks import optimizers

Classifier = MlpSpec | CnnSpec | ResnetSpec


class Classification:
    """The task `classification`.

    Raises:
        JobError: The job names no labelled data or no classifier.
    """

    def __init__(self, job: TrainJob) -> None:
        if not isinstance(job.data, LabelledData) or not isinstance(job.model, Classifier):
            raise JobError(
                "task classification needs images and a classifier, "
                "such as data.name=digits model.name=mlp"
            )
        self._optimizer = job.optimizer
        self._data = job.data
        self._model = job.model

    def model(self) -> nn.Module:
        splits = self._splits
        return models.build(self._model, shape=splits.shape, classes=splits.classes)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        return optimizers.build(self._optimizer, parameters)

    def training_data(self) -> Images:
        return self._splits.training

    def test_data(self) -> Images:
        return self._splits.test

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, dict[str, float]]:
        x, y = batch
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        return loss, {"accuracy": int(torch.count_nonzero(logits.argmax(1) == y)) / len(y)}

    def measure(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        x, y = batch
        logits = model(x)
        accuracy = (logits.argmax(1) == y).double().mean()
        return {"accuracy": float(accuracy), "test_loss": float(F.cross_entropy(logits, y))}

    @cached_property
    def _splits(self) -> Splits:
        return catalog.build(self._data)
