"""Building what a worker trains: the user's model and optimizer, moved into one replica."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.optim import Optimizer

from holdfast.arena.pages import private_memory
from holdfast.arena.replica import Replica, replica_layout
from holdfast.core import tree
from holdfast.core.seeds import seed_for
from holdfast.data.dataset import seed_everything
from holdfast.errors import JobError
from holdfast.job.spec import Job
from holdfast.transport.shared_memory import Meeting, SharedMemoryGroup
from holdfast.worker.ddp import DdpStepper
from holdfast.worker.room import check_room
from holdfast.worker.sections import Sections
from holdfast.worker.shard import units_of
from holdfast.worker.step import Stepper

ModelFactory = Callable[[], nn.Module]
OptimizerFactory = Callable[[Iterable[nn.Parameter]], Optimizer]


def attach(
    job: Job,
    group: SharedMemoryGroup,
    device: torch.device,
    model: ModelFactory,
    optimizer: OptimizerFactory,
) -> tuple[Replica, Sections]:
    """Build model and optimizer, the same on every worker, and lay them out.

    Raises:
        Aborted: The abort word was set.
        JobError: They cannot be trained, or the host has too little memory for them.
    """
    seed_everything(seed_for("attach", job.seed))
    module = model()
    built = optimizer([p for p in module.parameters() if p.requires_grad])
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not trained:
        raise JobError("the model has no parameter to train")
    layout = replica_layout(module, built)
    different = "different models: their shapes differ"
    group.agree(Meeting.ATTACH, 0, layout.digest, different)  # before they share memory
    in_arena = device.type == "cpu" and job.placement == "arena"
    sections = Sections(
        group.arena,
        trained if job.sync == "tree" else {},
        dict(module.named_buffers()),
        num_leaves=job.workers if job.merges_shards else job.shards,
        num_shards=job.shards,
        replica_bytes=layout.size_bytes if in_arena else 0,
    )
    private = device.type == "cpu" and not in_arena
    if group.rank == 0:
        check_room(job, sections, layout.size_bytes if private else 0)
    group.barrier(Meeting.ATTACH, 0)  # nobody fills memory before it is known that there is enough
    owed = units_of(job.plan(), group.rank, merged=job.merges_shards)
    leaves = [unit.leaf for unit in owed]
    sections.prepare(group.rank, tree.most_partials(leaves, sections.num_leaves))
    if device.type != "cpu":
        flat = torch.zeros(layout.size_bytes, dtype=torch.uint8, device=device)
    elif in_arena:
        flat = sections.replica(group.rank, layout.size_bytes)
    else:
        flat = torch.frombuffer(private_memory(layout.size_bytes), dtype=torch.uint8)
    replica = Replica(module, built, layout, flat)
    if job.compile:
        module.compile(dynamic=False)  # a shape's code must not depend on the shapes before it
    return replica, sections


def stepper(
    job: Job, replica: Replica, sections: Sections, group: SharedMemoryGroup, *, lone: bool
) -> Stepper | DdpStepper:
    """What computes the steps, as the job wants its gradients summed."""
    if job.sync == "ddp":
        return DdpStepper(replica, sections, group, port=job.port, clip_norm=job.clip_norm)
    return Stepper(
        replica,
        sections,
        group,
        num_leaves=sections.num_leaves,
        lone=lone,
        clip_norm=job.clip_norm,
    )
