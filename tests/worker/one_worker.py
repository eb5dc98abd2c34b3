"""One worker without a run: a small model with its replica, and a stepper that trains it."""

import contextlib
from pathlib import Path

import torch
from torch import nn

from holdfast.arena.memory import Arena
from holdfast.arena.replica import Replica, Trained, replica_layout
from holdfast.arena.worker_status import WorkerStatus
from holdfast.collectives.barrier_tags import describe
from holdfast.collectives.group import Group
from holdfast.core.balance.times import StepTimes
from holdfast.core.step.plan import Plan
from holdfast.job import load
from holdfast.wire.channel import pair
from holdfast.worker.agent_link import AgentLink
from holdfast.worker.checks.replica_checker import ReplicaChecker
from holdfast.worker.context import WorkerContext
from holdfast.worker.shared_sections import Sections
from holdfast.worker.step.commit import CommitVote, RequestFlags
from holdfast.worker.step.factory import stepper_factory
from holdfast.worker.step.stepper import StepContext

SHARDS = 4
VOTE = CommitVote(requests=RequestFlags.SAVE, user_state=5, replica=0, times=StepTimes())


def model_of(seed=0, width=4):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Linear(width, 1))


def replica_of(model, optimizer):
    trained = Trained(model=model, optimizers=(optimizer,))
    layout = replica_layout(trained)
    return Replica(trained, layout, torch.zeros(layout.size_bytes, dtype=torch.uint8))


class Member:
    """A worker without a run, in memory that it may share with others.

    Args:
        job: The job.
        arena: The memory, as this worker sees it.
        group: The workers.
        replica: Its replica.
        run_dir: The run directory.
        mapped: Memory of devices; None if there is none.
    """

    def __init__(self, job, arena, group, replica, run_dir=Path(), mapped=None):
        self.arena, self.group, self.replica, self.model = arena, group, replica, replica.model
        self._ends = pair()
        agent = AgentLink(WorkerStatus(arena, group.rank), arena, self._ends[0])
        factory = stepper_factory(job, replica.model, replica.flat.device)
        trained = dict(replica.model.named_parameters())
        self.sections = Sections(
            arena,
            trained if factory.reduces_in_slots else {},
            dict(replica.model.named_buffers()),
            num_leaves=job.num_leaves,
            num_shards=job.shards,
            replica_bytes=replica.layout.size_bytes,
            keeps_errors=job.keeps_errors,
            mapped=mapped,
        )
        self.replicas = ReplicaChecker(replica, group, 0)
        worker = WorkerContext.of(job, group, agent, arena)
        self.status = worker.status
        self.stepper = factory.build(
            StepContext(
                replica=replica,
                trained=trained,
                sections=self.sections,
                replicas=self.replicas,
                worker=worker,
                run_dir=run_dir,
            )
        )

    def close(self):
        for end in self._ends:
            end.close()


def job_of(**keys):
    keys = {"name": "digits", "data": {"name": "digits"}, "shards": SHARDS, "workers": 1} | keys
    return load.check(keys, where="test")


@contextlib.contextmanager
def member_of(replica, *, mapped=None, run_dir=Path(), **keys):
    """The only worker of a job with these keys."""
    job, arena = job_of(**keys), Arena.create(1)
    group = Group(arena, 0, 10.0, describe)
    group.enter(1, (0,))
    found = Member(job, arena, group, replica, run_dir, mapped)
    found.stepper.assign(0, Plan.even(job.shards, 1))
    found.stepper.resume(0)
    yield found
    found.close()


@contextlib.contextmanager
def stepper_of(replica, **keys):
    """The stepper of the only worker of a job with these keys."""
    with member_of(replica, **keys) as member:
        yield member.stepper


def batch(shard):
    generator = torch.Generator().manual_seed(shard)
    return torch.randn(5, 3, generator=generator), torch.randn(5, 1, generator=generator)


def loss_of(model, shard):
    x, y = batch(shard)
    return nn.functional.mse_loss(model(x), y)


def compute(stepper, model, work, factor=1, scale=1):
    stepper.begin_shard(work, seed=work.item.leaf)
    stepper.backward(factor * loss_of(model, work.item.leaf), 1 / SHARDS, scale=scale)
    stepper.end_shard()


def finish(stepper, model, step, factor=1, scale=1):
    """Compute the rest of a step whose losses are multiplied by `factor`, and commit it."""
    while work := stepper.next_work():
        compute(stepper, model, work, factor, scale)
    return stepper.commit(step, VOTE, scale=scale)
