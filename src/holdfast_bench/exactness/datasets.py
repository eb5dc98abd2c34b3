"""Data sets of the exactness fuzzer, made from a recipe alone; for workers only.

A sample is `x`, float[length, features], the number of rows of `x` that count, and a class. Where
lengths are variable, a batch is as long as its longest sample.

Shapes: B samples of a batch, L rows, F features.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import torch

from holdfast.data.dataset import MapStyle, stacked
from holdfast_bench.exactness.case import Recipe

CLASSES: Final = 3
NOISE: Final = 0.1
MAPPED: Final = "holdfast.testing.exactness.datasets.Mapped"
"""The name of `Mapped` in fingerprints, wherever the class is: each seed keeps its sample order."""

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""x_BLF, the lengths B, the classes B."""


class Samples:
    """Samples of all kinds of data sets: drawn once from a generator of its own.

    Args:
        recipe: Says how many, how long and how wide.
    """

    def __init__(self, recipe: Recipe) -> None:
        count = recipe.samples
        length = recipe.length
        features = recipe.features
        drawn = np.random.default_rng(recipe.seed)
        self.x = drawn.standard_normal((count, length, features)).astype(np.float32)
        lengths = drawn.integers(1, length + 1, count)
        self.lengths = lengths if recipe.variable else np.full(count, length)
        self.classes = drawn.integers(0, CLASSES, count)
        for row, end in zip(self.x, self.lengths, strict=True):
            row[end:] = 0

    def take(self, indices: np.ndarray[Any, Any]) -> Batch:
        """Samples as tensors that share the memory of an array, whatever its alignment."""
        lengths = self.lengths[indices]
        x = self.x[indices, : lengths.max()]
        return (
            torch.from_numpy(x),
            torch.from_numpy(lengths),
            torch.from_numpy(self.classes[indices]),
        )


class Arrays:
    """A `holdfast.Dataset` over arrays.

    Args:
        recipe: Of the samples.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._samples = Samples(recipe)
        self._noisy = recipe.data == "generator"
        self.fingerprint = f"exactness {recipe.seed}"

    def __len__(self) -> int:
        return len(self._samples.x)

    def batch(self, indices: np.ndarray[Any, Any], generator: torch.Generator) -> Batch:
        """The samples at `indices`, with noise from `generator` if the recipe asks for it."""
        x, lengths, classes = self._samples.take(indices)
        if self._noisy:
            x = x + NOISE * torch.randn(x.shape, generator=generator)
        return x, lengths, classes


class Mapped(torch.utils.data.Dataset[Any]):
    """A map-style data set, collated by PyTorch, with noise from all three global generators if
    the recipe asks for it.

    Args:
        recipe: Of the samples.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._samples = Samples(recipe)
        self._noisy = recipe.data in ("augmented", "stream")

    def __len__(self) -> int:
        return len(self._samples.x)

    def __getitem__(self, index: int) -> tuple[Any, Any, Any]:
        samples = self._samples
        x = torch.from_numpy(samples.x[index])
        if self._noisy:
            shift = random.random() + np.random.rand()
            x = x + NOISE * (torch.randn(x.shape) + shift)
        return x, samples.lengths[index], samples.classes[index]


class Streamed(torch.utils.data.IterableDataset[Any]):
    """A stream of samples with noise; see `Mapped`.

    Args:
        recipe: Of the samples.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._samples = Mapped(recipe)

    def __iter__(self) -> Iterator[tuple[Any, Any, Any]]:
        return map(self._samples.__getitem__, range(len(self._samples)))


def dataset(recipe: Recipe) -> Arrays | MapStyle | Streamed:
    """The data set of a recipe."""
    if recipe.data == "stream":
        return Streamed(recipe)
    if recipe.data in ("numpy", "generator"):
        return Arrays(recipe)
    mapped = MapStyle(Mapped(recipe), stacked)
    mapped.fingerprint = f"{MAPPED}:{len(mapped)}"
    return mapped
