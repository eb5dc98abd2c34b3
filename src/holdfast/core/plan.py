"""Plan: which worker computes which shards of a step.

Neighbouring shards go to one worker, so that sibling shards meet on it and are added before
anything is shared (see `core.tree`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import JobError


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A cut of the shards `0..num_shards-1` into one contiguous range a rank.

    Attributes:
        counts: Shards of each rank, in rank order; a rank may owe none.
    """

    counts: tuple[int, ...]

    @property
    def world_size(self) -> int:
        return len(self.counts)

    @property
    def num_shards(self) -> int:
        return sum(self.counts)

    def shards_of(self, rank: int) -> range:
        """The shards that `rank` computes, in the order in which it computes them."""
        first = sum(self.counts[:rank])
        return range(first, first + self.counts[rank])

    @classmethod
    def even(cls, num_shards: int, world_size: int) -> Plan:
        """Shares that differ by one shard at most; of more ranks than shards, the last owe none."""
        share, rest = divmod(num_shards, world_size)
        return cls(counts=tuple(share + (rank < rest) for rank in range(world_size)))

    @classmethod
    def of_counts(cls, counts: Sequence[int], num_shards: int, world_size: int) -> Plan:
        """The shares that a job prescribes.

        Raises:
            JobError: They do not name every worker once, or do not add up to the shards.
        """
        if len(counts) != world_size or sum(counts) != num_shards or min(counts) < 0:
            raise JobError(
                f"shards_per_worker={list(counts)} must give {world_size} workers "
                f"{num_shards} shards in all, none below 0"
            )
        return cls(counts=tuple(counts))
