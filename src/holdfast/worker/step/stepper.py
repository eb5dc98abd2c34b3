"""Stepper: what a session needs from a step, however gradients are computed and summed.

    while work := next_work():   begin_shard ─▶ (user: forward, loss) ─▶ backward ─▶ end_shard
    then:                        commit ─▶ the step counts
                                        └▶ None: a result is in doubt, and there is more work

A new way to compute a step (sharded optimizer state, a pipeline) is another implementation;
`worker.step.factory` chooses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from holdfast.arena.replica import Replica
from holdfast.core.step.plan import Plan, WorkItem
from holdfast.worker.checks.replica_checker import ReplicaChecker
from holdfast.worker.context import WorkerContext
from holdfast.worker.shared_sections import Sections
from holdfast.worker.step.buffers import Buffers
from holdfast.worker.step.commit import CommitVote, StepCommitted


@dataclass(frozen=True, slots=True)
class Work:
    """Next piece of work of a worker.

    Attributes:
        item: The shards, and the leaf of the reduction tree that they fill.
        is_check: True if it only checks a result. Then nothing that user code does meanwhile
            counts.
    """

    item: WorkItem
    is_check: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """Parts that every stepper works with.

    Attributes:
        replica: State that is trained.
        trained: The parameters that get a gradient, by name.
        sections: The memory that the workers share.
        replicas: Compares the replica with those of the other members.
        worker: The job, the group, the status and the failpoints of this worker.
        run_dir: The run directory.
    """

    replica: Replica
    trained: Mapping[str, nn.Parameter]
    sections: Sections
    replicas: ReplicaChecker
    worker: WorkerContext
    run_dir: Path


class Stepper(Protocol):
    """Computes steps on one worker.

    Attributes:
        work_items: Work of this worker in every step.
        needs_every_worker: True if every worker computes something in every step. Then one without
            samples computes a batch of others' samples, with a weight of 0.
        sends_whole: True if the next gradient is not compressed, whatever the job says; set before
            its first shard. After the commit: True if it was not.
        buffers: The model's buffers.
        on_gradients: Called in every commit once `parameter.grad` is the step's clipped gradient,
            before the optimizers are stepped.
    """

    work_items: Sequence[WorkItem]
    needs_every_worker: bool
    sends_whole: bool
    buffers: Buffers
    on_gradients: Callable[[], object] | None

    # Between steps: a plan, and a generation that begins or ends.

    def assign(self, step: int, plan: Plan) -> None:
        """Compute by `plan` from `step` on."""
        ...

    def resume(self, step: int) -> None:
        """Agree with the members of a new generation on what remains of the current step.

        Raises:
            Aborted: The generation is over.
        """
        ...

    def restart(self) -> None:
        """Begin the current step again, from the replica as it is."""
        ...

    def abandon(self) -> None:
        """Discard what was computed of a step that will not be committed."""
        ...

    def next_work(self) -> Work | None:
        """Next work of this worker in the current step; None if it is time to commit."""
        ...

    # Within a step: one shard after the other, of those that this worker computes.

    def begin_shard(self, work: Work, seed: int) -> None:
        """Get ready for a shard, whose random numbers start from `seed`."""
        ...

    def backward(
        self, loss: torch.Tensor, weight: float, scale: int, trains: nn.Module | None = None
    ) -> None:
        """Record the gradient of the current shard.

        Args:
            loss: The mean over the shard, a scalar.
            weight: Weight of the shard; usually its part of the step's samples, so that all
                weights add up to one. It is rounded to the loss's dtype.
            scale: The power of two that losses are multiplied by, so that gradients do not vanish.
                The gradient is divided by it. It is the same on all workers.
            trains: The model whose parameters get a gradient; None for all.

        Raises:
            Aborted: The generation is over.
            JobError: The loss is not a scalar that depends on the model, or this is the second
                call for the shard.
        """
        ...

    def log(self, values: Mapping[str, Any]) -> None:
        """Add values to what the current shard logs.

        Raises:
            JobError: One is no number, or there are more than fit.
        """
        ...

    def end_shard(self) -> None:
        """Complete the current shard.

        Raises:
            JobError: A buffer changed its shape, or `backward` was required and not called.
        """
        ...

    def skip_shard(self, work: Work) -> None:
        """Account for a shard without samples: it weighs nothing."""
        ...

    # The end of a step, which all workers reach.

    def commit(self, step: int, vote: CommitVote, scale: int) -> StepCommitted | None:
        """Reduce, check, clip, update and commit.

        Args:
            step: Steps committed before.
            vote: Message of this worker to the others.
            scale: Scale of losses. Above 1, it may be why a gradient is not finite, and then the
                step is skipped.

        Returns:
            The step; None if a result is in doubt. Once `next_work` is computed, the next call
            decides which worker is wrong.

        Raises:
            Aborted: The generation is over, and this worker has not committed the step.
            NonFiniteError: The gradient is not finite; nothing was changed.
            HardwareError: The gradient is not finite, or wrong, because of this worker.
            ReplicaError: Replicas differ, and this worker leaves.
            UserStatesDiffer: What user code keeps is not the same on all workers.
            JobError: The shards contradict each other.
        """
        ...

    def complete(self, step: int) -> StepCommitted:
        """Commit a step that other members have committed before the generation ended."""
        ...
