"""The `Dataset` protocol, and the adapter for map-style PyTorch data sets."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias, TypeGuard

import numpy as np
import torch
from torch.utils.data import default_collate

from holdfast.core.step.seeds import seed_for
from holdfast.data.permutation import Indices
from holdfast.errors import JobError

Batch: TypeAlias = Any
"""Values of a data set for some samples: usually `(x, y)`, tensors with one row per sample."""

Collate = Callable[[list[Any]], Batch]
"""Makes a batch of a list of samples."""


class Dataset(Protocol):
    """A data set that holdfast reads from.

    Attributes:
        fingerprint: Identifies the data. The sample order depends on it.
        reads_ahead: True if batches may be read before they are needed, in another thread. Set it
            to False if `batch` draws from the global random generators. A class of your own that
            does not set it counts as True.
    """

    fingerprint: str
    reads_ahead: bool

    def __len__(self) -> int:
        """The number of samples."""

    def batch(self, indices: Indices, generator: torch.Generator) -> Batch:
        """The samples at `indices`, int64[n], in that order.

        The result must depend on the arguments only: random numbers come from `generator`. Any
        thread may call it.
        """


class MapStyle:
    """A map-style PyTorch data set, read sample by sample.

    The global random generators are seeded for every batch, so that augmentation in `__getitem__`
    depends on the shard only. They also serve the model, so nothing is read ahead.

    Args:
        samples: The data set.
        collate: Makes a batch of a list of its samples.
    """

    reads_ahead = False

    def __init__(self, samples: Any, collate: Collate) -> None:
        self.samples = samples
        self.collate = collate
        kind = type(samples)
        self.fingerprint = f"{name_of_kind(kind)}:{len(samples)}"

    def __len__(self) -> int:
        return len(self.samples)

    def rows(self, indices: Indices, generator: torch.Generator) -> list[Any]:
        """The samples at `indices`, one by one."""
        seed_everything(generator.initial_seed())
        return [self.samples[int(i)] for i in indices]

    def batch(self, indices: Indices, generator: torch.Generator) -> Batch:
        return self.collate(self.rows(indices, generator))


def stacked(samples: list[Any]) -> Batch:
    """The samples as PyTorch stacks them by default; a list of parts becomes a tuple.

    Raises:
        JobError: They cannot be stacked.
    """
    try:
        batch = default_collate(samples)
    except (RuntimeError, TypeError) as error:
        raise JobError(
            f"the samples of a batch cannot be stacked: {error}; make the batch in a function of "
            "your own: collate=pad in session.shards, or the collate_fn of a DataLoader"
        ) from None
    return tuple(batch) if type(batch) is list else batch


def as_dataset(samples: object, collate: Collate = stacked) -> Dataset:
    """`samples` as a data set.

    Raises:
        JobError: It is neither a `Dataset` nor a map-style PyTorch data set, or it is empty.
    """
    dataset: Dataset
    if _is_dataset(samples):
        if collate is not stacked:
            raise JobError(
                f"{type(samples).__name__} makes batches itself, in its method batch; remove "
                "collate"
            )
        dataset = samples
    elif hasattr(samples, "__len__") and hasattr(samples, "__getitem__"):
        dataset = MapStyle(samples, collate)
    else:
        raise JobError(
            f"{type(samples).__name__} is not a data set: it needs __len__ and __getitem__"
        )
    if len(dataset) == 0:
        raise JobError(f"{type(samples).__name__} holds no samples")
    return dataset


def _is_dataset(samples: object) -> TypeGuard[Dataset]:
    """True if an object has all of the protocol but `reads_ahead`, which has a default."""
    return all(hasattr(samples, name) for name in ("fingerprint", "__len__", "batch"))


def name_of(dataset: object) -> str:
    """The name of a data set in error messages: its class."""
    return type(dataset.samples if isinstance(dataset, MapStyle) else dataset).__name__


def generator_for(*key: int | str) -> torch.Generator:
    """A random generator that is seeded by `key` only."""
    return torch.Generator().manual_seed(seed_for(*key))


@contextmanager
def generators_kept() -> Iterator[None]:
    """Restore the global generators at the end, whatever was drawn in between."""
    state = torch.get_rng_state()
    numpys = np.random.get_state()
    pythons = random.getstate()
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.set_rng_state(state)
        np.random.set_state(numpys)
        random.setstate(pythons)
        if gpus:
            torch.cuda.set_rng_state_all(gpus)


def name_of_kind(kind: type) -> str:
    """A name of a class for fingerprints, on which the sample order depends."""
    is_of_file = kind.__module__ == "__main__" and sys.modules["__main__"].__spec__ is None
    module = "__holdfast_task__" if is_of_file else kind.__module__  # as runs have always named it
    return f"{module}.{kind.__qualname__}"


def seed_everything(seed: int) -> None:
    """Seed torch's, numpy's and Python's global generators."""
    torch.default_generator.manual_seed(seed)  # `torch.manual_seed` initializes all device types
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)
