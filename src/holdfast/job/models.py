"""Models that a job can name. `holdfast.models` builds them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from holdfast.job.part import Count, Fraction, Spec


class MlpSpec(Spec):
    """Linear layers with ReLU between them."""

    name: Literal["mlp"]
    hidden: tuple[Count, ...] = (128,)
    dropout: Fraction = 0.0


class CnnSpec(Spec):
    """Two convolutions with batch normalization, and a linear layer."""

    name: Literal["cnn"]
    width: Count = 16
    dropout: Fraction = 0.0


class ResnetSpec(Spec):
    """ResNet-18 or ResNet-50."""

    name: Literal["resnet18", "resnet50"]
    width: Count = 64
    """Channels of the first stage's 3x3 convolutions; the published networks have 64."""
    stem: Literal["small", "large"] = "small"
    """`small`: a 3x3 convolution, for images of up to about 64 pixels. `large`: the published 7x7
    convolution with stride 2 and max pooling with stride 2."""
    gradient_checkpointing: bool = False
    """Keep only the inputs of each block and recompute the rest in the backward pass: less memory
    and the same weights, for about a third more time."""


class Transformer(Spec):
    """Keys of every transformer."""

    name: str
    width: Count
    heads: Count
    layers: Count
    dropout: Fraction = 0.1
    gradient_checkpointing: bool = False
    """As in `ResnetSpec`."""

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"width={self.width} must be a multiple of heads={self.heads}")
        return self


class GptSpec(Transformer):
    """A small decoder-only transformer over bytes."""

    name: Literal["gpt"]
    width: Count = 128
    heads: Count = 4
    layers: Count = 4


class Gpt2Spec(Transformer):
    """GPT-2 from the library transformers with random weights; the small size by default."""

    name: Literal["gpt2"]
    width: Count = 768
    heads: Count = 12
    layers: Count = 12
    vocabulary: Annotated[int, Field(ge=256)] = 256
    """Number of tokens: 256 for bytes; the published network has 50257."""


class BertSpec(Transformer):
    """BERT from the library transformers with random weights; the base size by default."""

    name: Literal["bert"]
    width: Count = 768
    heads: Count = 12
    layers: Count = 12
    vocabulary: Annotated[int, Field(ge=257)] = 257
    """Number of tokens: 256 for bytes, and the mask; the published network has 30522."""


Model = Annotated[
    MlpSpec | CnnSpec | ResnetSpec | GptSpec | Gpt2Spec | BertSpec, Field(discriminator="name")
]
