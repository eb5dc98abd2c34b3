"""Loads: the models that are trained on a GPU, with a batch of random samples in pinned memory.

gpt2, resnet50                fill a GPU
gpt2-small, resnet50-small    bound by the host, which launches the kernels
gpt2-tiny, resnet50-tiny      for a CPU
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

import torch
import torch.nn.functional as F
from torch import nn, optim

from holdfast.job.models import Gpt2Spec
from holdfast.models import build_language_model
from holdfast.models.gpt import Gpt
from holdfast.models.resnet import Bottleneck, ResNet

if TYPE_CHECKING:
    from holdfast.data.permutation import Indices


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpt2:
    """GPT-2 on `batch` windows of random tokens, with a fused AdamW."""

    batch: int
    vocabulary: int
    length: int
    width: int = 768
    layers: int = 12
    built_in: bool = False

    def model(self) -> nn.Module:
        if self.built_in:
            return build_language_model(Gpt2Spec(name="gpt2"), context=self.length)
        return Gpt(
            vocabulary=self.vocabulary,
            context=self.length,
            width=self.width,
            heads=self.width // 64,
            layers=self.layers,
            dropout=0.0,
            gradient_checkpointing=False,
        )

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        return optim.AdamW(parameters, lr=6e-4, weight_decay=0.1, fused=True)

    def samples(self) -> tuple[torch.Tensor, ...]:
        """Drawn from a fixed seed."""
        generator = torch.Generator().manual_seed(0)
        shape = (self.batch, self.length + 1)
        return (torch.randint(self.vocabulary, shape, generator=generator),)

    def loss(self, model: nn.Module, samples: tuple[torch.Tensor, ...]) -> torch.Tensor:
        (tokens,) = samples
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


@dataclass(frozen=True, slots=True, kw_only=True)
class Resnet50:
    """ResNet-50 on `batch` random images of `side` pixels, with a fused SGD."""

    batch: int
    side: int
    width: int = 64
    depths: tuple[int, int, int, int] = (3, 4, 6, 3)
    layout: torch.memory_format = torch.channels_last

    def model(self) -> nn.Module:
        network = ResNet(
            Bottleneck,
            self.depths,
            channels=3,
            width=self.width,
            classes=1000,
            large=self.side >= 128,
            gradient_checkpointing=False,
        )
        network.to(memory_format=self.layout)  # type: ignore[call-overload]
        return network

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        return optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=5e-4, fused=True)

    def samples(self) -> tuple[torch.Tensor, ...]:
        """Drawn from a fixed seed."""
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(self.batch, 3, self.side, self.side, generator=generator)
        y = torch.randint(1000, (self.batch,), generator=generator)
        return x.contiguous(memory_format=self.layout), y

    def loss(self, model: nn.Module, samples: tuple[torch.Tensor, ...]) -> torch.Tensor:
        x, y = samples
        return F.cross_entropy(model(x), y)


Load: TypeAlias = Gpt2 | Resnet50
LOADS: Final[Mapping[str, Load]] = MappingProxyType(
    {
        "gpt2": Gpt2(batch=32, vocabulary=50257, length=1024),
        "resnet50": Resnet50(batch=256, side=224),
        "gpt2-small": Gpt2(batch=32, vocabulary=256, length=128, built_in=True),
        "resnet50-small": Resnet50(batch=128, side=32, layout=torch.contiguous_format),
        "gpt2-tiny": Gpt2(batch=4, vocabulary=64, length=16, width=64, layers=2),
        "resnet50-tiny": Resnet50(batch=4, side=16, width=8, depths=(1, 1, 1, 1)),
    }
)


def pinned(load: Load) -> tuple[torch.Tensor, ...]:
    """The samples of a shard, in pinned memory if there is a GPU."""
    samples = load.samples()
    return tuple(each.pin_memory() for each in samples) if torch.cuda.is_available() else samples


class Repeated:
    """A data set whose shards all have the same samples, so that reading costs nothing.

    Args:
        load: Has the samples.
        size: Samples that it claims to hold.
    """

    fingerprint = "repeated"

    def __init__(self, load: Load, size: int) -> None:
        self._samples = pinned(load)
        self._size = size

    def __len__(self) -> int:
        return self._size

    def batch(self, indices: Indices, generator: torch.Generator) -> tuple[torch.Tensor, ...]:  # noqa: ARG002  # the protocol's
        """So many samples as `indices` are."""
        return tuple(each[: len(indices)] for each in self._samples)
