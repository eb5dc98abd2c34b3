"""Plan: which worker computes which shards of a step, and in which portions.

Neighbouring shards go to one worker, so that sibling shards meet on it and are added before
anything is shared (see `core.step.tree`).

Between hosts, the blocks of the gradient are divided, too. A host sends its partial sums of a block
to the block's owner, which adds them and sends the result to all others (reduce-scatter, then
all-gather). Blocks are cut by their bytes into one contiguous cell for each host and lane. A lane
is a set of connections, one to each other host: the workers of a host share the lanes out, so that
hosts with unlike numbers of workers fit together.
"""

from __future__ import annotations

import bisect
import itertools
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import JobError


@dataclass(frozen=True, slots=True)
class WorkItem:
    """Shards that are computed together.

    Attributes:
        leaf: The leaf of the reduction tree that their gradient fills.
        shards: The shards; empty if a worker only accounts for a leaf.
    """

    leaf: int
    shards: range

    @classmethod
    def of_shard(cls, shard: int) -> WorkItem:
        """One shard that is computed by itself."""
        return cls(shard, range(shard, shard + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A cut of the shards `0..num_shards-1` into one contiguous range a rank.

    Attributes:
        counts: Shards of each rank, in rank order; a rank may have none.
    """

    counts: tuple[int, ...]

    @property
    def world_size(self) -> int:
        return len(self.counts)

    @property
    def num_shards(self) -> int:
        return sum(self.counts)

    @property
    def digest(self) -> int:
        """A number that tells two plans apart."""
        return zlib.crc32(repr(self.counts).encode())

    def shards_of(self, rank: int) -> range:
        """The shards that `rank` computes, in the order in which it computes them."""
        first = sum(self.counts[:rank])
        return range(first, first + self.counts[rank])

    def work_items(self, rank: int) -> list[WorkItem]:
        """Work of `rank` in every step: its shards one by one."""
        return [WorkItem.of_shard(shard) for shard in self.shards_of(rank)]

    def merged_work_items(self, rank: int, num_leaves: int) -> list[WorkItem]:
        """Work of `rank` in every step if each worker merges its shards into one leaf.

        Args:
            rank: A member of this plan.
            num_leaves: Workers of the job. Rank 0 accounts for those that the plan lacks.
        """
        missing = range(self.world_size, num_leaves) if rank == 0 else range(0)
        return [
            WorkItem(rank, self.shards_of(rank)),
            *(WorkItem(leaf, range(0)) for leaf in missing),
        ]

    @classmethod
    def even(cls, num_shards: int, world_size: int) -> Plan:
        """Equal shares, up to one shard; with more ranks than shards, the last have none."""
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
                f"{num_shards} shards in all, each at least 0"
            )
        return cls(counts=tuple(counts))


def plan_step(
    num_shards: int,
    num_workers: int,
    shards_per_worker: Sequence[int] | None,
    num_members: int | None = None,
) -> Plan:
    """The plan of a generation: as the job prescribes, or even.

    Args:
        num_shards: Shards of a step.
        num_workers: Workers of the job.
        shards_per_worker: Shards of each of the job's workers, if the job prescribes them.
        num_members: Workers in this generation; all by default. With fewer the plan is even.

    Raises:
        JobError: The workers cannot share the shards.
    """
    if shards_per_worker is None and num_workers > num_shards:
        raise JobError(
            f"workers={num_workers} is more than shards={num_shards}, so some would never have "
            f"work: start at most {num_shards} workers, or set shards={num_workers} or more"
        )
    if shards_per_worker is None or num_members not in (None, num_workers):
        return Plan.even(num_shards, num_members or num_workers)
    return Plan.of_counts(shards_per_worker, num_shards, num_workers)


def cells(sizes: Sequence[int], num_hosts: int, num_lanes: int) -> list[list[range]]:
    """The blocks of each host and lane: `cells(…)[host][lane]`.

    Args:
        sizes: The size of each block, bytes.
        num_hosts: Hosts of the generation.
        num_lanes: Workers of the host that has most.
    """
    ends = list(itertools.accumulate(sizes))
    count = num_hosts * num_lanes
    total = ends[-1] if ends else 0
    cuts = [bisect.bisect_left(ends, total * cell / count) for cell in range(count)]
    # A cut is at the first block that ends at or after its share; that block is left of it.
    borders = [0, *(min(cut + 1, len(sizes)) for cut in cuts[1:]), len(sizes)]
    flat = [range(start, end) for start, end in itertools.pairwise(borders)]
    return [flat[host * num_lanes : (host + 1) * num_lanes] for host in range(num_hosts)]


def spread_cells(sizes: Sequence[int], num_hosts: int, num_lanes: int) -> list[list[list[int]]]:
    """The blocks of each host and lane, of which neighbours belong to different cells. Each cell
    begins with its last blocks: a backward pass computes the last ones first, so all links are busy
    meanwhile.
    """
    loads = [0] * (num_hosts * num_lanes)
    flat: list[list[int]] = [[] for _ in loads]
    for index in reversed(range(len(sizes))):
        cell = loads.index(min(loads))
        flat[cell].append(index)
        loads[cell] += sizes[index]
    return [flat[host * num_lanes : (host + 1) * num_lanes] for host in range(num_hosts)]


def lanes_of(worker: int, num_workers: int, num_lanes: int) -> range:
    """The lanes that a worker serves.

    Args:
        worker: Its position among the workers of its host.
        num_workers: Workers of its host.
        num_lanes: Defined in `cells`.
    """
    return range(worker, num_lanes, num_workers)
