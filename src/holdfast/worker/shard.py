"""Shard: the samples that user code computes a loss on, and which shards a worker is assigned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.core.step.plan import Plan, WorkItem, plan_step
from holdfast.data.dataset import Batch
from holdfast.errors import JobError
from holdfast.job.train_job import TrainJob


@dataclass(frozen=True, slots=True)
class Shard:
    """Samples to compute a loss on.

    Attributes:
        batch: Batch that the data set gives for them.
        size: Their number; 0 if a worker only takes part (with `sync: ddp`).
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


def plan_of(job: TrainJob, num_members: int | None = None) -> Plan:
    """Assignment of a step's shards to members; see `core.step.plan.plan_step`."""
    return plan_step(job.shards, job.workers, job.shards_per_worker, num_members)


def work_items_of(plan: Plan, place: int, job: TrainJob) -> list[WorkItem]:
    """Work of a member in every step: its shards one by one, or all of them as one."""
    if job.merges_shards:
        return plan.merged_work_items(place, job.num_leaves)
    return plan.work_items(place)
