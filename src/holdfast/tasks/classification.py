"""Image classification with the built-in models and data sets."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Optimizer

from holdfast import models
from holdfast.data.cifar import cifar
from holdfast.data.dataset import Batch
from holdfast.data.images import Images, digits, synthetic_images
from holdfast.errors import JobError
from holdfast.job.data import Cifar, DigitsData, SyntheticImages
from holdfast.job.models import Cnn, Mlp, Resnet
from holdfast.job.spec import Job
from holdfast.tasks import optimizers

Pictures = DigitsData | SyntheticImages | Cifar
Classifier = Mlp | Cnn | Resnet


class Classification:
    """The task of the built-in jobs.

    Raises:
        JobError: The job names no data or no model.
    """

    def __init__(self, job: Job) -> None:
        if not isinstance(job.data, Pictures) or not isinstance(job.model, Classifier):
            raise JobError(
                "task classification needs images and a classifier, "
                "such as data.name=digits model.name=mlp"
            )
        self._optimizer, self._data, self._model = job.optimizer, job.data, job.model

    def model(self) -> nn.Module:
        match self._data:
            case DigitsData():
                shape, classes = (1, 8, 8), 10
            case Cifar(name=name):
                shape, classes = (3, 32, 32), 10 if name == "cifar10" else 100
            case SyntheticImages(channels=channels, height=height, classes=classes):
                shape = (channels, height, height)
        return models.build(self._model, shape=shape, classes=classes)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        return optimizers.build(self._optimizer, parameters)

    def training_data(self) -> Images:
        return self._images[0]

    def test_data(self) -> Images:
        return self._images[1]

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        x, y = batch
        return F.cross_entropy(model(x), y)

    def measure(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        x, y = batch
        logits = model(x)
        hits = (logits.argmax(1) == y).double().mean()
        return {"accuracy": float(hits), "test_loss": float(F.cross_entropy(logits, y))}

    @cached_property
    def _images(self) -> tuple[Images, Images]:
        match self._data:
            case DigitsData(augment=augment):
                return digits(augment=augment)
            case Cifar(name=name, path=path, augment=augment):
                return cifar(name, path, augment=augment)
            case SyntheticImages() as data:
                return synthetic_images(**data.model_dump(exclude={"name"}))
