"""Models that a job can name. `holdfast.models` builds them."""

from __future__ import annotations

from pathlib import Path
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


class Lora(Spec):
    """Adapters of linear layers (LoRA)."""

    rank: Count = 16
    alpha: Count = 32
    """The adapters' outputs are scaled by alpha / rank."""
    dropout: Fraction = 0.05
    targets: tuple[Annotated[str, Field(pattern=r"^\w+$")], ...] = (
        "q_proj", "k_proj", "v_proj", "o_proj",
    )  # fmt: skip
    """The layers, by the last part of their names."""


class MistralSpec(Spec):
    """A Mistral network with 4-bit weights (NF4) that are frozen, and adapters that are trained;
    the shape of Mistral-7B by default.
    """

    name: Literal["mistral"]
    path: Path | None = None
    """A folder with config.json, safetensors and a tokenizer; by default random weights, and bytes
    as tokens."""
    width: Count = 4096
    layers: Count = 32
    heads: Count = 32
    kv_heads: Count = 8
    """Heads of keys and values, each for several heads."""
    feedforward: Count = 14336
    """Width between the two layers of a feed-forward block."""
    vocabulary: Annotated[int, Field(ge=256)] = 32000
    """Number of tokens."""
    adapter_dtype: Literal["fp32", "bf16"] = "fp32"
    """Dtype of the adapters, their gradients and their optimizer state."""
    gradient_checkpointing: bool = True
    """As in `ResnetSpec`."""
    cache: Path | None = None
    """Directory for the 4-bit weights, which all workers of a host map; by default in the run's."""
    lora: Lora = Lora()

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> Self:
        if self.width % self.heads or self.heads % self.kv_heads:
            raise ValueError(
                f"width={self.width} must be a multiple of heads={self.heads}, and heads of "
                f"kv_heads={self.kv_heads}"
            )
        return self


Model = Annotated[
    MlpSpec | CnnSpec | ResnetSpec | GptSpec | Gpt2Spec | BertSpec | MistralSpec,
    Field(discriminator="name"),
]
