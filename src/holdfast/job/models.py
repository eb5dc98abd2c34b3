"""The models that a job can name. Where each is built: `holdfast.models`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from holdfast.job.part import Count, Fraction, Spec


class Mlp(Spec):
    """Linear layers with ReLU between them."""

    name: Literal["mlp"]
    hidden: tuple[Count, ...] = (128,)
    dropout: Fraction = 0.0


class Cnn(Spec):
    """Two convolutions with batch normalisation, and a linear layer."""

    name: Literal["cnn"]
    width: Count = 16
    dropout: Fraction = 0.0


class Resnet18(Spec):
    """ResNet-18 with the stem for small images."""

    name: Literal["resnet18"]
    width: Count = 64
    """Channels of the first stage; the published network has 64."""


class Gpt(Spec):
    """A small decoder-only transformer over bytes."""

    name: Literal["gpt"]
    width: Count = 128
    heads: Count = 4
    layers: Count = 4
    dropout: Fraction = 0.1


Model = Annotated[Mlp | Cnn | Resnet18 | Gpt, Field(discriminator="name")]
