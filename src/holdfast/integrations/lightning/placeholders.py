"""Batches of a Trainer in a run: what its loop sees, and its loader as the run reads it.

A micro-batch of the Trainer is a shard. Its loop gets a `NoBatch` for each: the workers read their
shards themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Never

import torch
from torch.utils.data import DataLoader

from holdfast.errors import JobError
from holdfast.integrations.width import Width


class NoBatch:
    """Stands for a micro-batch, which nothing but `training_step` may read."""

    def _refuse(self, *_: object) -> Never:
        raise JobError(
            "the batch was read in on_train_batch_start or on_train_batch_end; in a run a batch "
            "is divided among workers: read it in training_step"
        )

    __getitem__ = __iter__ = __len__ = _refuse

    def __getattr__(self, name: str) -> Never:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()


class NoBatches:
    """Stands for the micro-batches of an epoch.

    Args:
        count: Their number.
    """

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[NoBatch]:
        return (NoBatch() for _ in range(self._count))


def as_read(library: DataLoader[Any], width: Width) -> DataLoader[Any]:
    """The samples of a loader in its order, in batches of a step."""
    return DataLoader(
        library.dataset,
        batch_size=width.batch,
        sampler=width.kept(library.sampler, drops_last=library.drop_last),
        collate_fn=library.collate_fn,
        num_workers=library.num_workers,
        worker_init_fn=library.worker_init_fn,
        generator=library.generator,
        pin_memory=library.pin_memory and torch.cuda.is_available(),
    )
