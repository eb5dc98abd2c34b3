"""A step of a sharded model: each worker holds some rows of all weights and of their state.

    each round   forward, backward: weights are gathered unit by unit;
                 the rows of gradients are exchanged, and added along the tree of shards
    commit       losses, buffers, votes ─▶ norm over all rows ─▶ clip ─▶ update own rows

The bits are those of a model that is not divided. All but the gradient is reduced as in
`worker.step.tree`, through slots that hold no gradient.

A lost worker takes rows along that no other has. So the agent ends the others too, and all are
restarted from the newest checkpoint.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from holdfast.arena.memory import Phase, Word, float_of, word_of
from holdfast.collectives.barrier_tags import WorkerTag
from holdfast.collectives.exact import TreeReducer
from holdfast.collectives.gradient_sets import Gradients
from holdfast.collectives.slot import SlotLayout
from holdfast.core.step.plan import Plan, WorkItem
from holdfast.data.dataset import seed_everything
from holdfast.errors import JobError
from holdfast.worker.process_groups.collectives import aborts_explained
from holdfast.worker.step.buffers import Buffers
from holdfast.worker.step.commit import (
    CommitVote,
    StepCommitted,
    check_user_states,
    commit_step,
)
from holdfast.worker.step.gradient_norm import is_finite, not_finite
from holdfast.worker.step.partial_weights import outside_the_model
from holdfast.worker.step.shard_work import (
    CurrentShard,
    LossLeaves,
    PartialSums,
    add_logged,
    check_loss,
)
from holdfast.worker.step.sharded.gathered_units import Unit
from holdfast.worker.step.sharded.sharded_model import ShardedModel
from holdfast.worker.step.stepper import StepContext, Work


class ShardedStepper:
    """Computes steps on one worker; see `worker.step.stepper` for what its methods do.

    Args:
        model: The model, of which each worker holds a part.
        context: Its slots hold no gradients.
    """

    def __init__(self, model: ShardedModel, context: StepContext) -> None:
        self._model = model
        self._replica = replica = context.replica
        self._replicas = context.replicas
        self._sections = sections = context.sections
        worker = context.worker
        self._job = worker.job
        self._group = worker.group
        self._status = worker.status
        self._clip_norm = worker.job.clip_norm
        self._non_finite = worker.job.non_finite
        self.work_items: Sequence[WorkItem] = ()
        self.needs_every_worker = True
        self.sends_whole = False
        self.on_gradients: Callable[[], object] | None = None
        rest = SlotLayout({}, replica.model_buffers)
        self.buffers = Buffers(replica, rest)
        self._partials = PartialSums(
            replica.flat.device, rest, sections.num_slots, sections.num_leaves
        )
        begin_reduce = functools.partial(self._status.enter, Phase.REDUCE)
        self._reducer = TreeReducer(
            self._group, sections.reduction, sections.num_leaves, begin_reduce
        )
        self._leaves = LossLeaves(replica)
        self._sums = model.sums(sections.num_leaves, sections)
        self._shard: CurrentShard | None = None
        self._scale = 1
        model.begin(replica, sections, self._collect)
        self.restart()

    def assign(self, step: int, plan: Plan) -> None:  # noqa: ARG002  # the protocol's
        """Implements `Stepper.assign`."""
        self.work_items = self._job.work_items(plan, self._group.member_index)

    def resume(self, step: int) -> None:
        """Nothing remains of a step: after a failure, all workers are started again."""

    def restart(self) -> None:
        """Implements `Stepper.restart`."""
        self._model.free()
        torch.clear_autocast_cache()  # weights change
        self.buffers.begin()
        self._sums.restart()
        self._partials.clear()
        self._shard = None

    abandon = restart

    def next_work(self) -> Work | None:
        """Implements `Stepper.next_work`."""
        items = (item for item in self.work_items if not self._partials.covers(item.leaf))
        return next((Work(item, is_check=False) for item in items), None)

    def begin_shard(self, work: Work, seed: int) -> None:
        """Implements `Stepper.begin_shard`."""
        self.buffers.begin()
        self._model.begin_shard()
        self._shard = CurrentShard(leaf=work.item.leaf, number=self._partials.take())
        seed_everything(seed)

    def backward(
        self, loss: torch.Tensor, weight: float, scale: int, trains: nn.Module | None = None
    ) -> None:
        """Compute the gradient of a shard together with the other workers; see `Stepper.backward`.

        Raises:
            JobError: `trains` is given; else as there.
        """
        shard = self._shard
        assert shard is not None, "backward without a shard"
        words = self._job.parallel.words
        if trains is not None:
            raise JobError(f"with {words}, there is one model; remove trains")
        if shard.weight is not None:
            raise JobError(
                "session.backward was called twice for one shard; add the losses and call it once"
            )
        check_loss(loss)
        if isinstance(loss, DTensor):
            raise outside_the_model(self._job.parallel)
        step = self._status[Word.COMMITTED]
        self._leaves.allow(self._model.leaves)
        self._leaves.check(loss, step)
        shard.weight = weight
        self._partials.sets[shard.number].begin([], weight, loss)
        # A shard without weight adds nothing, not even a zero, so workers must know the weights
        # before they add.
        words_of_weights = self._group.barrier(WorkerTag.WEIGHTS, step, word_of(weight))
        first = shard.leaf - self._group.rank
        leaves = range(first, first + len(self._group.members))
        self._sums.begin_round(leaves, [*map(float_of, words_of_weights)])
        self._scale = scale
        factor = weight * scale
        before = self._status.enter(Phase.BACKWARD)
        with aborts_explained(self._group):
            torch.autograd.backward(loss if factor == 1 else loss * factor)
            self._model.end_backward()
        if self._sums.is_open:
            raise JobError(
                f"with {words}, the loss depends on other layers than the model has computed; "
                "call the model once for each shard, or under torch.no_grad()"
            )
        self._sums.end_round()
        self._status.enter(before)

    def _collect(self, unit: Unit, gradients: Gradients) -> None:
        """Exchange the gradient of a unit."""
        if not self._sums.is_open:
            raise JobError(
                "a gradient was computed that session.backward has not computed; call "
                "session.backward(loss) instead of loss.backward()"
            )
        self._model.add(self._sums, unit, gradients, 1 / self._scale)

    def log(self, values: Mapping[str, Any]) -> None:
        """Implements `Stepper.log`."""
        assert self._shard is not None, "log without a shard"
        add_logged(self._shard.logged, values)

    def end_shard(self) -> None:
        """Complete the shard's partial sum; see `Stepper.end_shard`."""
        shard = self._shard
        assert shard is not None, "no shard was begun"
        words = self._job.parallel.words
        if shard.weight is None:
            raise JobError(
                f"with {words}, every worker must call session.backward for every shard: to skip "
                "a shard, give it the weight 0"
            )
        if self._sums.is_open:
            raise JobError(
                f"with {words}, session.backward failed, and the other workers wait for the "
                "gradient of that shard; set parallel.zero=0, where a shard can be skipped"
            )
        self._shard = None
        self._partials.take_buffers(shard, self.buffers)
        self._partials.complete(shard)

    def skip_shard(self, work: Work) -> None:
        """Never called, as every worker computes something in every step."""
        raise AssertionError(f"work item {work.item} has no samples")

    def commit(self, step: int, vote: CommitVote, scale: int) -> StepCommitted:
        """Implements `Stepper.commit`."""
        table = self._reducer.blocks.publish(self._partials.table, self._partials.sets.__getitem__)
        reduced = self._reducer.reduce(table, step, vote.value, vote.replica, vote.times)
        check_user_states(self._group, reduced)
        self._replicas.check(step, reduced.replica_digests)
        gradients = self._sums.means(reduced.weight)
        norm = self._model.norm(gradients)
        is_usable = is_finite(norm)
        if not is_usable and self._non_finite != "skip" and scale == 1:
            raise not_finite(step, self._model.norms(gradients))
        if is_usable and self._clip_norm is not None and norm > self._clip_norm:
            factor = self._clip_norm / (norm + 1e-6)
            for gradient in gradients.values():
                if gradient is not None:
                    gradient.mul_(factor)
        self._status.enter(Phase.OPTIMIZER)
        self._sections.intact.begin_change(self._group.rank)
        if is_usable:
            self._update(gradients)
            self.buffers.take(self._sections.root, reduced.used, reduced.kept)
        self.restart()
        return commit_step(self._status, step, reduced, norm)

    def _update(self, gradients: Mapping[str, torch.Tensor | None]) -> None:
        """Step the optimizer over the rows of this worker."""
        # No gradient where no shard used the parameter, so that the optimizer leaves it alone.
        for name, parameter in self._replica.parameters.items():
            parameter.grad = gradients.get(name)
        self._replica.step_optimizers()
        for parameter in self._replica.parameters.values():
            parameter.grad = None
        self._replica.capture_optimizers()

    def complete(self, step: int) -> StepCommitted:
        """Never called: after a failure, all workers are started again."""
        raise AssertionError(f"step {step + 1} cannot be completed with a sharded model")
