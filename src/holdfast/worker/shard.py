"""Shard: the samples that user code computes a loss on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.data.dataset import Batch
from holdfast.errors import JobError


@dataclass(frozen=True, slots=True)
class Shard:
    """Samples to compute a loss on.

    Attributes:
        batch: Batch that the data set gives for them.
        size: Their number, without those that a collate function has left out; 0 if a worker only
            takes part (with `sync: ddp`).
        step: The step that they belong to.
        epoch: The epoch that they belong to.
    """

    batch: Batch
    size: int
    step: int
    epoch: int

    def __iter__(self) -> Iterator[Any]:
        """The parts of the batch, as in `for x, y in session.shards(data)`."""
        return iter(self.batch)

    @property
    def x(self) -> Any:
        """The first part of the batch: the inputs."""
        return self._part(0)

    @property
    def y(self) -> Any:
        """The second part of the batch: the targets."""
        return self._part(1)

    def _part(self, number: int) -> Any:
        """Raises: JobError: The batch has no parts in an order."""
        if isinstance(self.batch, Sequence):
            return self.batch[number]
        raise JobError(
            f"shard.x and shard.y are for batches like (x, y); this one is a "
            f"{type(self.batch).__name__}, so use shard.batch"
        )
