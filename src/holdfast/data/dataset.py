"""What a data set is, and how any map-style PyTorch data set becomes one."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch.utils.data import default_collate

from holdfast.core.seeds import seed_for
from holdfast.data.permutation import Indices
from holdfast.errors import JobError

Batch = tuple[Any, ...]
"""What a data set gives for some samples: usually `(x, y)`, tensors with one row a sample."""


@runtime_checkable
class Dataset(Protocol):
    """A data set that holdfast reads from.

    Attributes:
        fingerprint: Names the data; another name is walked in another order.
    """

    fingerprint: str

    def __len__(self) -> int:
        """Samples."""
        ...

    def batch(self, indices: Indices, generator: torch.Generator) -> Batch:
        """The samples at `indices`, int64[n], in that order.

        Must be a function of its arguments alone, safe to call from any thread; chance comes from
        `generator` only.
        """
        ...


class MapStyle:
    """A map-style PyTorch data set, read sample by sample.

    The global random generators are seeded for every batch, so that augmentation in
    `__getitem__` depends on the shard alone.

    Args:
        samples: The data set.
    """

    reads_ahead = False
    """Its samples may draw from the global generators, which the model's own numbers come from."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples
        kind = type(samples)
        self.fingerprint = f"{kind.__module__}.{kind.__qualname__}:{len(samples)}"

    def __len__(self) -> int:
        return len(self.samples)

    def batch(self, indices: Indices, generator: torch.Generator) -> Batch:
        seed_everything(generator.initial_seed())
        collated = default_collate([self.samples[int(i)] for i in indices])
        return tuple(collated) if isinstance(collated, list | tuple) else (collated,)


def as_dataset(samples: object) -> Dataset:
    """`samples` as a data set.

    Raises:
        JobError: It is neither a `Dataset` nor a map-style PyTorch data set, or it is empty.
    """
    if isinstance(samples, Dataset):
        found: Dataset = samples
    elif isinstance(samples, Sized) and hasattr(samples, "__getitem__"):
        found = MapStyle(samples)
    else:
        raise JobError(
            f"{type(samples).__name__} is not a data set: it needs __len__ and __getitem__"
        )
    if len(found) == 0:
        raise JobError(f"{type(samples).__name__} holds no samples")
    return found


def name_of(dataset: Dataset) -> str:
    """What errors call a data set: the name of its class."""
    return type(dataset.samples if isinstance(dataset, MapStyle) else dataset).__name__


def generator_for(*key: int | str) -> torch.Generator:
    """A generator of random numbers that hang on `key` alone."""
    return torch.Generator().manual_seed(seed_for(*key))


@contextmanager
def generators_kept() -> Iterator[None]:
    """Leave the global generators as they were, whatever is drawn meanwhile."""
    state, numpys, pythons = torch.get_rng_state(), np.random.get_state(), random.getstate()
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.set_rng_state(state)
        np.random.set_state(numpys)
        random.setstate(pythons)
        if gpus:
            torch.cuda.set_rng_state_all(gpus)


def seed_everything(seed: int) -> None:
    """Seed torch's, numpy's and Python's global generators."""
    torch.default_generator.manual_seed(seed)  # `torch.manual_seed` asks for every kind of device
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)
