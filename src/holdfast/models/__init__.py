"""The built-in models."""

from __future__ import annotations

from torch import nn

from holdfast.job.models import Cnn, Mlp, Resnet18
from holdfast.models.cnn import SmallCnn
from holdfast.models.mlp import MultilayerPerceptron
from holdfast.models.resnet import ResNet18


def build(spec: Mlp | Cnn | Resnet18, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
    """The model of a job, for images of `(channels, height, width)`."""
    match spec:
        case Mlp():
            inputs = shape[0] * shape[1] * shape[2]
            return MultilayerPerceptron(inputs, spec.hidden, classes, spec.dropout)
        case Cnn():
            return SmallCnn(shape[0], spec.width, classes, spec.dropout)
        case Resnet18():
            return ResNet18(shape[0], spec.width, classes)
