"""Image data sets that need no download."""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from holdfast.data.dataset import Batch, generator_for
from holdfast.data.permutation import Indices, Permutation


class Images:
    """Labelled images in memory.

    Args:
        x: Images, float32[n, channels, height, width].
        y: Classes, int64[n].
        shift: Move each image by up to so many pixels each way, zeros coming in.
        mirror: Mirror each image with probability a half.
    """

    def __init__(self, x: torch.Tensor, y: torch.Tensor, *, shift: int = 0, mirror: bool = False):
        self._x, self._y, self._shift, self._mirror = x, y, shift, mirror
        hasher = hashlib.sha256()
        hasher.update(x.numpy().tobytes())
        hasher.update(y.numpy().tobytes())
        self.fingerprint = f"images:{hasher.hexdigest()[:32]}"

    def __len__(self) -> int:
        return len(self._y)

    def batch(self, indices: Indices, generator: torch.Generator) -> Batch:
        """`(x, y)`: float32[n, channels, height, width] and int64[n]."""
        rows = torch.from_numpy(indices)
        x, y = self._x[rows], self._y[rows]
        if self._shift:
            x = _shifted(x, self._shift, generator)
        if self._mirror:
            flips = torch.rand(len(x), generator=generator) < 0.5
            x = torch.where(flips[:, None, None, None], x.flip(3), x)
        return x, y


def digits(*, augment: bool) -> tuple[Images, Images]:
    """Training and test images of scikit-learn's digits, 1,437 and 360, values in 0..1."""
    # Read as a file: importing scikit-learn takes a second, for which a worker could train.
    package = find_spec("sklearn")
    assert package is not None
    assert package.submodule_search_locations is not None
    path = Path(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    table = torch.from_numpy(np.loadtxt(path, delimiter=",", dtype=np.int64))
    x, y = table[:, :-1].reshape(-1, 1, 8, 8).to(torch.float32) / 16, table[:, -1].contiguous()
    order = torch.from_numpy(Permutation(len(y), b"digits: training and test").take(0, len(y)))
    train, test = order[360:], order[:360]
    return Images(x[train], y[train], shift=int(augment)), Images(x[test], y[test])


def synthetic_images(
    *, size: int, channels: int, height: int, classes: int, augment: bool
) -> tuple[Images, Images]:
    """Training and test images, `size` and a quarter of it: a random pattern a class, and noise."""
    shape = (channels, height, height)
    patterns = torch.randn(classes, *shape, generator=generator_for("patterns"))

    def draw(name: str, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = generator_for(name)
        y = torch.randint(classes, (count,), generator=generator)
        return patterns[y] + 2 * torch.randn(count, *shape, generator=generator), y

    return Images(*draw("train", size), mirror=augment), Images(*draw("test", max(1, size // 4)))


def _shifted(x: torch.Tensor, limit: int, generator: torch.Generator) -> torch.Tensor:
    n, channels, height, width = x.shape
    padded = F.pad(x, (limit, limit, limit, limit))
    down, right = torch.randint(2 * limit + 1, (2, n, 1), generator=generator)
    rows = (down + torch.arange(height))[:, None, :, None]
    columns = (right + torch.arange(width))[:, None, None, :]
    samples = torch.arange(n)[:, None, None, None]
    return padded[samples, torch.arange(channels)[None, :, None, None], rows, columns]
