"""Width: how a step of another library's loop is divided. One of its micro-batches is a shard."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch.utils.data import Sampler


@dataclass(frozen=True, slots=True, kw_only=True)
class Width:
    """Division of a step.

    Attributes:
        micro_batch: Samples of a micro-batch.
        accumulated: Micro-batches that the library accumulates in a step.
        workers: Workers at the first start of the run, each with so many micro-batches.
    """

    micro_batch: int
    accumulated: int
    workers: int

    @property
    def shards(self) -> int:
        """Shards of a step."""
        return self.accumulated * self.workers

    @property
    def batch(self) -> int:
        """Samples of a step."""
        return self.micro_batch * self.shards

    @property
    def _side_by_side(self) -> int:
        """Samples of the micro-batches that are computed side by side."""
        return self.micro_batch * self.workers

    def micro_batches(self, samples: int) -> int:
        """Micro-batches that the library's loop sees in an epoch of so many samples."""
        return math.ceil(samples / self._side_by_side)

    def kept(self, sampler: Any, *, drops_last: bool) -> Any:
        """The sampler of an epoch: without micro-batches that are not whole, if the library drops
        these. The last step may have fewer micro-batches.
        """
        excess = len(sampler) % self._side_by_side if drops_last else 0
        return FirstSamples(sampler, len(sampler) - excess) if excess else sampler


class FirstSamples(Sampler[int]):
    """The first samples of an epoch of another sampler.

    Args:
        sampler: The other sampler.
        count: Number of samples.
    """

    def __init__(self, sampler: Any, count: int) -> None:
        self._sampler = sampler
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        return islice(self._sampler, self._count)

    def set_epoch(self, epoch: int) -> None:
        """Draw those of an epoch from now on."""
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)
