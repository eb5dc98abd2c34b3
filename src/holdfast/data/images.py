"""Images: labelled images, and feature vectors, for classification.

A vector counts as an image of one pixel with a channel for each feature.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from holdfast.data.dataset import Batch
from holdfast.data.permutation import Indices, Permutation
from holdfast.errors import JobError

Pixels = npt.NDArray[Any]
"""uint8 or float32, [n, channels, height, width]."""

Labels = npt.NDArray[np.int64]

TEST_SHARE: Final = 0.1
"""Share of the samples that forms the test set if the data set has none."""

_BLOCK: Final = 256
"""Samples that are summed at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Images and their classes, in memory or mapped from a file.

    Attributes:
        x: Images, uint8 or float32, [n, channels, height, width].
        y: Classes, int64[n].
        sha256: Digest of the bytes of x and y.
    """

    x: Pixels
    y: Labels
    sha256: str

    @classmethod
    def of(cls, x: Pixels, y: Labels) -> Self:
        """Samples of contiguous arrays."""
        return cls(x=x, y=y, sha256=digest(x, y))


@dataclass(frozen=True, slots=True)
class Scale:
    """Mean and standard deviation of each channel, to standardize images."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, x: Pixels, rows: Indices) -> Self:
        """The scale of some rows of `x`; the deviation of a constant channel counts as 1."""
        axes = (0, 2, 3)
        count = len(rows) * x.shape[2] * x.shape[3]
        mean = sum(block.sum(axes, dtype=np.float64) for block in _blocks(x, rows)) / count
        middle = np.asarray(mean)[:, None, None]
        squares = sum(np.square(block - middle).sum(axes) for block in _blocks(x, rows)) / count
        deviation = np.sqrt(squares)
        return cls(
            tuple(np.atleast_1d(mean).tolist()),
            tuple(np.where(deviation > 0, deviation, 1.0).tolist()),
        )


class Images:
    """A data set of images.

    Args:
        samples: The images.
        rows: The rows of `samples` that form this data set; all by default.
        scale: Standardizes the images; by default they stay as they are.
        shift: Shift each image by up to this many pixels in both directions, padded with zeros.
        mirror: Flip each image horizontally with probability 0.5.
    """

    reads_ahead = True

    def __init__(
        self,
        samples: Samples,
        *,
        rows: Indices | None = None,
        scale: Scale | None = None,
        shift: int = 0,
        mirror: bool = False,
    ) -> None:
        self._samples = samples
        self._shift = shift
        self._mirror = mirror
        self._rows = np.arange(len(samples.y)) if rows is None else rows
        self._scale = None if scale is None else (_column(scale.mean), _column(scale.std))
        name = samples.sha256
        if rows is not None:
            name = hashlib.sha256(f"{name}:{digest(rows)}".encode()).hexdigest()
        self.fingerprint = f"images:{name[:32]}"

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, indices: Indices, generator: torch.Generator) -> Batch:
        """`(x, y)`: float32[n, channels, height, width] and int64[n]."""
        rows = self._rows[indices]
        x = torch.from_numpy(self._samples.x[rows])
        y = torch.from_numpy(self._samples.y[rows])
        if self._scale is not None:
            mean, deviation = self._scale
            x = (x - mean) / deviation
        if self._shift:
            x = _shifted(x, self._shift, generator)
        if self._mirror:
            flips = torch.rand(len(x), generator=generator) < 0.5
            x = torch.where(flips[:, None, None, None], x.flip(3), x)
        return x, y


@dataclass(frozen=True, slots=True, kw_only=True)
class Splits:
    """A data set with its training and test parts.

    Attributes:
        training: The samples to train on.
        test: The samples to evaluate on.
        shape: Channels, height and width of an image.
        classes: Number of classes.
    """

    training: Images
    test: Images
    shape: tuple[int, int, int]
    classes: int


def split(size: int, where: str) -> tuple[Indices, Indices]:
    """The rows for training and for the test (a tenth, drawn with a fixed key), ascending.

    Raises:
        JobError: There are too few rows.
    """
    if size < 2:
        raise JobError(f"{where}: {size} samples cannot be split into training and test; add more")
    order = Permutation(size, b"training and test").take(0, size)
    cut = max(1, int(size * TEST_SHARE))
    return np.sort(order[cut:]), np.sort(order[:cut])


def checked_labels(values: npt.NDArray[Any], classes: int, where: str) -> Labels:
    """`values` as int64[n].

    Raises:
        JobError: They are not integers from 0 to `classes - 1`.
    """
    if values.dtype.kind not in "iu" or values.ndim != 1:
        raise JobError(
            f"{where}: labels must be one integer per sample, not {values.dtype} of shape "
            f"{list(values.shape)}; convert them to classes from 0 to {classes - 1}"
        )
    wrong = np.flatnonzero((values < 0) | (values >= classes))
    if wrong.size:
        raise JobError(
            f"{where}: label {values[wrong[0]]} is outside 0..{classes - 1}; "
            "fix the file or the number of classes"
        )
    return values.astype(np.int64)


def digest(*arrays: npt.NDArray[Any]) -> str:
    """SHA-256 over the bytes of contiguous arrays, hexadecimal."""
    hasher = hashlib.sha256()
    for array in arrays:
        hasher.update(array.reshape(-1).view(np.uint8).data)
    return hasher.hexdigest()


def _blocks(x: Pixels, rows: Indices) -> Iterator[Pixels]:
    return (x[rows[start : start + _BLOCK]] for start in range(0, len(rows), _BLOCK))


def _column(values: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None, None]


def _shifted(x: torch.Tensor, limit: int, generator: torch.Generator) -> torch.Tensor:
    n, channels, height, width = x.shape
    padded = F.pad(x, (limit, limit, limit, limit))
    down, right = torch.randint(2 * limit + 1, (2, n, 1), generator=generator)
    rows = (down + torch.arange(height))[:, None, :, None]
    columns = (right + torch.arange(width))[:, None, None, :]
    samples = torch.arange(n)[:, None, None, None]
    return padded[samples, torch.arange(channels)[None, :, None, None], rows, columns]
