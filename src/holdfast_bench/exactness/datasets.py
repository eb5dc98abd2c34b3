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
from torch.utils.data import DataLoader, Sampler, WeightedRandomSampler

from holdfast.data.dataset import MapStyle, stacked
from holdfast_bench.exactness.case import Recipe

CLASSES: Final = 3
NOISE: Final = 0.1
LOWEST: Final = -0.8
"""What a sample begins with that a collate function keeps: four of five."""
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


class Turned(Sampler[int]):
    """A sampler of one's own, which turns the samples by one more place in every epoch.

    Args:
        count: Number of the samples.
    """

    def __init__(self, count: int) -> None:
        self._order = list(range(count))

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[int]:
        self._order = [*self._order[1:], self._order[0]]
        return iter(self._order)


def without_some(samples: list[Any]) -> Any:
    """The batch of the samples that begin with no low value; None if there is none."""
    kept = [each for each in samples if float(each[0][0, 0]) > LOWEST]
    return stacked(kept) if kept else None


def ordered(recipe: Recipe, samples: Any) -> Any:
    """The samples of a recipe for its loop, in a DataLoader if that orders them."""
    if recipe.order == "own":
        # A `MapStyle` makes its batches itself.
        return Mapped(recipe) if recipe.drops and recipe.data != "stream" else samples
    drawn = torch.Generator().manual_seed(recipe.seed) if recipe.order == "generator" else None
    return DataLoader(
        Mapped(recipe),
        batch_size=recipe.batch,
        shuffle=None if drawn is None else True,
        generator=drawn,
        sampler=_sampler(recipe),
        collate_fn=without_some if recipe.drops else stacked,
    )


def _sampler(recipe: Recipe) -> Sampler[int] | None:
    match recipe.order:
        case "weighted":
            weights = [1.0 + number % 3 for number in range(recipe.samples)]
            return WeightedRandomSampler(weights, recipe.samples)
        case "sampler":
            return Turned(recipe.samples)
    return None


def dataset(recipe: Recipe) -> Arrays | MapStyle | Streamed:
    """The data set of a recipe."""
    if recipe.data == "stream":
        return Streamed(recipe)
    if recipe.data in ("numpy", "generator"):
        return Arrays(recipe)
    mapped = MapStyle(Mapped(recipe), stacked)
    mapped.fingerprint = f"{MAPPED}:{len(mapped)}"
    return mapped
