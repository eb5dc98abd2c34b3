"""What a worker computes at a time, as its own code sees it and as the plan does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.core.plan import Plan
from holdfast.data.dataset import Batch
from holdfast.data.loading.loader import WorkItem
from holdfast.job.spec import Job


@dataclass(frozen=True, slots=True)
class Shard:
    """Samples to compute a loss on.

    Attributes:
        batch: What the data set gives for them.
        size: How many they are; 0 where a worker only takes part (with `sync: ddp`).
        step: The step that they belong to.
        epoch: The epoch that they belong to.
    """

    batch: Batch
    size: int
    step: int
    epoch: int

    @property
    def x(self) -> Any:
        """The first part of the batch: the inputs."""
        return self.batch[0]

    @property
    def y(self) -> Any:
        """The second part of the batch: the targets."""
        return self.batch[1]


def alone(shard: int) -> WorkItem:
    """A shard that is computed by itself."""
    return WorkItem(shard, range(shard, shard + 1))


def work_items_of(plan: Plan, place: int, job: Job) -> list[WorkItem]:
    """What a member computes in every step: its shards one by one, or all of them as one.

    Args:
        plan: For the members there are.
        place: Which of them.
        job: A job that merges shards has a leaf for each worker, of whom some may be missing; the
            first member accounts for theirs.
    """
    shards = plan.shards_of(place)
    if not job.merges_shards:
        return [alone(shard) for shard in shards]
    missing = range(plan.world_size, job.workers) if place == 0 else range(0)
    return [WorkItem(place, shards), *(WorkItem(leaf, range(0)) for leaf in missing)]
