"""Sample order: which samples a step uses, and which of them each shard has.

The cursor of a run is one number, its committed steps. The epoch, the samples of the step and the
slice of each shard follow from it. So a restored run cannot be out of place, and the samples of a
shard do not depend on the worker that computes it.

The order is a permutation of the run's own, that of the data set, or what a sampler draws.

A short last batch is neither padded nor dropped; its step is weighted by its size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Final, Self

import numpy as np

from holdfast.data.permutation import Indices, Permutation

SHUFFLED: Final = "shuffle=True"
"""The run's own order: a permutation for each epoch."""
SEQUENTIAL: Final = "shuffle=False"
"""The order of the data set."""


@dataclass(frozen=True, kw_only=True)
class SampleOrder:
    """The iteration order of one run over one data set.

    Attributes:
        num_samples: Samples of an epoch, at least 1.
        batch_size: Samples of a full step, over all workers.
        num_shards: Shards per step.
        epochs: Number of epochs.
        seed: The job's seed.
        fingerprint: Identifies the data set; the order depends on it.
        drops_last: True if a short last batch is left out.
        sampler: SHUFFLED, SEQUENTIAL, or the class of the sampler that draws the order.
        drawn: Gives the order of an epoch that a sampler draws.
    """

    num_samples: int
    batch_size: int
    num_shards: int
    epochs: int
    seed: int
    fingerprint: str
    drops_last: bool = False
    sampler: str = SHUFFLED
    drawn: Callable[[int], Indices] | None = None

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> Self | None:
        """The order that a checkpoint or a reader describes; None for that of a stream."""
        known = {each.name: facts[each.name] for each in fields(cls) if each.name in facts}
        return cls(**known) if "num_samples" in known else None

    @property
    def steps_per_epoch(self) -> int:
        if self.drops_last:
            return self.num_samples // self.batch_size
        return -(-self.num_samples // self.batch_size)

    @property
    def total_steps(self) -> int:
        return self.steps_per_epoch * self.epochs

    def epoch_of(self, step: int) -> int:
        """The epoch that `step` belongs to, from 0."""
        return step // self.steps_per_epoch

    def ends_epoch(self, step: int) -> bool:
        """True if `step` is the last of its epoch."""
        return (step + 1) % self.steps_per_epoch == 0

    def batch_size_of(self, step: int) -> int:
        """Samples of `step`: the batch size, or fewer at the end of an epoch."""
        start = step % self.steps_per_epoch * self.batch_size
        return min(self.batch_size, self.num_samples - start)

    def indices(self, step: int, shards: range) -> Indices:
        """The samples of neighbouring shards, int64[n]."""
        start = step % self.steps_per_epoch * self.batch_size
        bounds = shard_bounds(self.batch_size_of(step), self.batch_size, self.num_shards)
        lo = start + bounds[shards.start]
        hi = start + bounds[shards.stop]
        if self.drawn is not None:
            return self.drawn(self.epoch_of(step))[lo:hi]
        if self.sampler == SEQUENTIAL:
            return np.arange(lo, hi, dtype=np.int64)
        return self._permutation(self.epoch_of(step)).take(lo, hi)

    def _permutation(self, epoch: int) -> Permutation:
        key = f"{self.fingerprint}\0{self.seed}\0{epoch}".encode()
        return _permutation(self.num_samples, hashlib.blake2b(key, digest_size=32).digest())


@lru_cache(maxsize=4)  # neighbouring epochs, training and test; thread-safe
def _permutation(num_samples: int, key: bytes) -> Permutation:
    return Permutation(num_samples, key)


def shard_bounds(num_samples: int, batch_size: int, num_shards: int) -> tuple[int, ...]:
    """The bounds of a step's shards: shard k has the samples `[bounds[k], bounds[k + 1])`.

    The bounds are those of a full batch, so a short batch fills the first shards. If its last shard
    would have one sample where a full shard has more, that sample joins the shard before it,
    because batch normalization cannot use a single sample. Shards past the end are empty.

    Args:
        num_samples: Samples of this step, at least 1 and at most `batch_size`.
        batch_size: Samples of a full step.
        num_shards: Shards of a step.
    """
    full = [k * batch_size // num_shards for k in range(num_shards + 1)]
    bounds = [min(cut, num_samples) for cut in full]
    last = max(k for k in range(num_shards) if bounds[k] < num_samples)
    alone = num_samples - bounds[last] == 1 and full[last + 1] - full[last] > 1
    if alone and last > 0:
        bounds[last] = num_samples
    return tuple(bounds)
