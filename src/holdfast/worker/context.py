"""Worker context: what nearly every part of a worker needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from holdfast.arena.fault_requests import FaultRequests
from holdfast.arena.memory import Arena
from holdfast.arena.worker_status import WorkerStatus
from holdfast.collectives.group import Group
from holdfast.job.train_job import TrainJob
from holdfast.worker.agent_link import AgentLink
from holdfast.worker.failpoints import Failpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """Values that nearly every part of a worker needs.

    Attributes:
        job: The job.
        group: The members of the current generation.
        agent: The agent of this worker.
        status: Status that this worker publishes.
        failpoints: Points at which it injects faults into itself.
    """

    job: TrainJob
    group: Group
    agent: AgentLink
    status: WorkerStatus
    failpoints: Failpoints

    @classmethod
    def of(cls, job: TrainJob, group: Group, agent: AgentLink, arena: Arena) -> Self:
        """The context of this process, whose words are in `arena`."""
        status = WorkerStatus(arena, group.rank)
        failpoints = Failpoints(FaultRequests(arena, group.rank), status)
        return cls(job=job, group=group, agent=agent, status=status, failpoints=failpoints)
