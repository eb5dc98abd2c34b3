"""Models that a job can name. `holdfast.models` builds them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal, Self

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


MISTRAL_7B: Final = {
    "width": 4096, "layers": 32, "heads": 32, "kv_heads": 8, "feedforward": 14336,
    "vocabulary": 32000,
}  # fmt: skip
"""The sizes of Mistral-7B."""


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
    width: Count | None = None
    layers: Count | None = None
    heads: Count | None = None
    kv_heads: Count | None = None
    """Heads of keys and values, each for several heads."""
    feedforward: Count | None = None
    """Width between the two layers of a feed-forward block."""
    vocabulary: Annotated[int, Field(ge=256)] | None = None
    """Number of tokens. This and the other sizes are those of the folder, or of Mistral-7B."""
    adapter_dtype: Literal["fp32", "bf16"] = "fp32"
    """Dtype of the adapters, their gradients and their optimizer state."""
    gradient_checkpointing: bool = True
    """As in `ResnetSpec`."""
    cache: Path | None = None
    """Directory for the 4-bit weights, which all workers of a host map; by default in the run's."""
    lora: Lora = Lora()

    def size(self, name: str) -> int:
        """A size of a network without a folder."""
        given: int | None = getattr(self, name)
        return MISTRAL_7B[name] if given is None else given

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> Self:
        width, heads, kv_heads = map(self.size, ("width", "heads", "kv_heads"))
        if self.path is None and (width % heads or heads % kv_heads):
            raise ValueError(
                f"width={width} must be a multiple of heads={heads}, and heads of "
                f"kv_heads={kv_heads}"
            )
        return self


Model = Annotated[
    MlpSpec | CnnSpec | ResnetSpec | GptSpec | Gpt2Spec | BertSpec | MistralSpec,
    Field(discriminator="name"),
]
