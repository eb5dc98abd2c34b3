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


@contextlib.contextmanager
def stepper_of(replica, **keys):
    """A stepper of the only worker of a job with these keys."""
    keys = {"name": "digits", "data": {"name": "digits"}, "shards": SHARDS, "workers": 1} | keys
    job, arena = load.check(keys, where="test"), Arena.create(1)
    group = Group(arena, 0, 10.0, describe)
    group.enter(1, (0,))
    near, far = pair()
    agent = AgentLink(WorkerStatus(arena, 0), arena, near)
    factory = stepper_factory(job, replica.model, replica.flat.device)
    trained = dict(replica.model.named_parameters())
    sections = Sections(
        arena,
        trained if factory.reduces_in_slots else {},
        dict(replica.model.named_buffers()),
        num_leaves=SHARDS,
        num_shards=SHARDS,
        replica_bytes=replica.layout.size_bytes,
    )
    found = factory.build(
        StepContext(
            replica=replica,
            trained=trained,
            sections=sections,
            replicas=ReplicaChecker(replica, group, 0),
            worker=WorkerContext.of(job, group, agent, arena),
            run_dir=Path(),
        )
    )
    found.assign(0, Plan.even(SHARDS, 1))
    found.resume(0)
    yield found
    near.close()
    far.close()


def batch(shard):
    generator = torch.Generator().manual_seed(shard)
    return torch.randn(5, 3, generator=generator), torch.randn(5, 1, generator=generator)


def loss_of(model, shard):
    x, y = batch(shard)
    return nn.functional.mse_loss(model(x), y)


def compute(stepper, model, work, factor=1):
    stepper.begin_shard(work, seed=work.item.leaf)
    stepper.backward(factor * loss_of(model, work.item.leaf), 1 / SHARDS, scale=1)
    stepper.end_shard()


def finish(stepper, model, step, factor=1):
    """Compute the rest of a step whose losses are multiplied by `factor`, and commit it."""
    while work := stepper.next_work():
        compute(stepper, model, work, factor)
    return stepper.commit(step, VOTE, scale=1)
