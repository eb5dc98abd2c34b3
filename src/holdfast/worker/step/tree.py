"""A step whose gradient is summed along a fixed tree over shards: the exact one.

    for each shard:   begin_shard ─▶ (user: forward, loss) ─▶ backward ─▶ end_shard
    then once:        commit: reduce ─▶ check ─▶ clip ─▶ optimizer ─▶ buffers ─▶ commit

Each shard starts from the same weights and the same buffers, with random numbers of its own. The
loss is multiplied by the shard's weight, so autograd gives weight x gradient. That is written to
the shard's slot in the arena, and never copied again. Siblings in the tree are added as soon as
both are there. The reduction leaves its result in the root slot, from where the optimizer reads it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from holdfast.arena.memory import Phase, Word
from holdfast.collectives.barrier_tags import WorkerTag
from holdfast.collectives.exact import TreeReducer
from holdfast.collectives.gradient_sets import Gradients
from holdfast.collectives.reduction import Reduced
from holdfast.collectives.slot import LOSS, WEIGHT, Slot
from holdfast.core.step import tree
from holdfast.core.step.plan import Plan, WorkItem
from holdfast.worker.checks.shard_verifier import ShardVerifier, digest_of
from holdfast.worker.step.buffers import Buffers
from holdfast.worker.step.commit import (
    CommitVote,
    StepCommitted,
    check_user_states,
    commit_step,
)
from holdfast.worker.step.gradient_norm import is_finite, norm_of, norm_of_norms, not_finite
from holdfast.worker.step.recheck import Recheck
from holdfast.worker.step.shard_pass import ShardPass
from holdfast.worker.step.shard_work import CurrentShard, PartialSums
from holdfast.worker.step.stepper import StepContext, Work


@dataclass(slots=True, kw_only=True)
class _SlotShard(CurrentShard):
    """A shard whose gradient goes to a slot.

    Attributes:
        slot: Memory of its partial sum.
        lends_gradients: True if its gradients are lent, not copied; see `collectives.lending`.
        verify_only: True if it is assigned to another worker, and this one only verifies it.
        raw_gradients: The gradients as autograd gives them, if they are verified.
    """

    slot: Slot
    lends_gradients: bool
    verify_only: bool
    raw_gradients: list[torch.Tensor] = field(default_factory=list)


class TreeStepper:
    """Computes steps on one worker; see `worker.step.stepper` for what its methods do."""

    def __init__(self, context: StepContext) -> None:
        self._replica = context.replica
        self._sections = context.sections
        self._replicas = context.replicas
        worker = context.worker
        self._job = worker.job
        self._group = worker.group
        self._status = worker.status
        job = self._job
        group = self._group
        sections = self._sections
        replica = self._replica
        self._clip_norm = job.clip_norm
        self._non_finite = job.non_finite
        layout = sections.slot_layout
        self.work_items: Sequence[WorkItem] = ()
        self.needs_every_worker = False
        self._names = layout.parameter_names
        self.buffers = Buffers(replica, layout)
        self._pass = ShardPass[_SlotShard](context, self.buffers, self._collect)
        self._parameters = self._pass.parameters
        self._root_gradients = sections.root.gradients
        self._optimizer_reads_only = True  # until it writes to a gradient
        begin_reduce = functools.partial(self._status.enter, Phase.REDUCE)
        self._reducer = TreeReducer(group, sections.reduction, sections.num_leaves, begin_reduce)
        self._lending = self._reducer.blocks.lending
        self._verifier = ShardVerifier(group, sections.verification, job.verify.recompute)
        self.on_gradients: Callable[[], object] | None = None
        self._recheck: Recheck | None = None
        self._members = group.members
        self._peer_tables: list[list[int]] = []
        self.restart()

    def restart(self) -> None:
        """Implements `Stepper.restart`; a commit begins the next step alike."""
        self._pass.begin_step()
        self._recheck = None
        self._peer_tables = []
        self._lending.end()
        own_slots = functools.partial(self._sections.slot, self._group.rank)
        self._sums: PartialSums[Slot] = PartialSums(
            own_slots, self._sections.num_slots, self._sections.num_leaves
        )

    def assign(self, step: int, plan: Plan) -> None:
        """Implements `Stepper.assign`."""
        self.work_items = self._job.work_items(plan, self._group.member_index)
        self._verifier.begin(step, plan)

    def resume(self, step: int) -> None:
        """Implements `Stepper.resume`; sums of leaves that moved to another member stay usable."""
        self._recheck = None
        # This worker may get more of the step than it had: then it holds several partial sums, and
        # other workers read blocks that were its own.
        self._lending.write_back()
        if self._pass.shard is not None:
            self._pass.shard.lends_gradients = False
        is_changed = self._members != self._group.members
        if is_changed:
            self._members = self._group.members
            self._reducer.assign_blocks()
        # The new plan may merge other shards, or leave more partial sums.
        if self._job.merges_shards or (is_changed and not self._sums.has_capacity):
            self.restart()
        # From here on every member knows which leaves are computed, by any member.
        self._peer_tables = self._reducer.gather_tables(self._sums.table, step)

    def next_work(self) -> Work | None:
        """Implements `Stepper.next_work`."""
        items = self.work_items
        if self._recheck is not None:
            items = [WorkItem.of_shard(shard) for shard in self._recheck.shards]
        for item in items:
            if not self._is_computed(item.leaf):
                return Work(item, is_check=self._recheck is not None)
        return next(
            (Work(WorkItem.of_shard(shard), is_check=True) for shard in self._verifier.pending),
            None,
        )

    def _is_computed(self, leaf: int) -> bool:
        """True if some member has computed `leaf` in this step, or this one in its recheck."""
        node = tree.leaf(leaf, self._sections.num_leaves)
        peers = self._peer_tables if self._recheck is None else []
        return self._current_sums.covers(leaf) or any(tree.covers(table, node) for table in peers)

    def begin_shard(self, work: Work, seed: int) -> None:
        """Implements `Stepper.begin_shard`."""
        # A lone partial sum is read where autograd leaves it; a GPU's memory cannot be read here.
        lends = len(self.work_items) == 1 and self._sums.is_empty and self._recheck is None
        number = self._current_sums.take_slot()
        slot = self._current_sums.slots(number)
        slot.stats.zero_()
        shard = _SlotShard(
            leaf=work.item.leaf,
            number=number,
            slot=slot,
            lends_gradients=lends and self._replica.flat.device.type == "cpu",
            verify_only=self._is_verified_only(work),
        )
        self._pass.begin(shard, seed)

    def _is_verified_only(self, work: Work) -> bool:
        return work.is_check and self._recheck is None

    def backward(
        self, loss: torch.Tensor, weight: float, scale: int, trains: nn.Module | None = None
    ) -> None:
        """Implements `Stepper.backward`."""
        self._pass.backward(loss, weight, scale, trains)

    def log(self, values: Mapping[str, Any]) -> None:
        """Implements `Stepper.log`."""
        self._pass.log(values)

    def end_shard(self) -> None:
        """Complete the shard's partial sum and add it to its sibling's, if that is here."""
        shard = self._pass.end()
        if shard is None:
            return
        if shard.verify_only:
            self._current_sums.give_back(shard.number)
            self._verifier.record(shard.leaf, self._digest(shard) if shard.weight else None)
        elif not shard.weight:
            self._current_sums.give_back(shard.number)
            self._current_sums.enter(shard.leaf, tree.EMPTY)
        else:
            # The slot is whole before the table says so.
            self._complete(shard, shard.weight)
            self._current_sums.enter(shard.leaf, shard.number)

    def skip_shard(self, work: Work) -> None:
        """Implements `Stepper.skip_shard`."""
        if self._is_verified_only(work):
            self._verifier.record(work.item.leaf, None)
        else:
            self._current_sums.enter(work.item.leaf, tree.EMPTY)

    def abandon(self) -> None:
        """Implements `Stepper.abandon`."""
        self._pass.abandon()
        self.restart()

    def commit(self, step: int, vote: CommitVote, scale: int) -> StepCommitted | None:
        """Implements `Stepper.commit`."""
        if self._recheck is not None:
            error = self._recheck.resolve(step, self._norms())
            if scale == 1:
                raise error
            return self._publish(step, self._with_norm(self._reducer.reduced()))
        # All members have recomputed the disputed shard: now they decide.
        if self._verifier.is_disputed:
            self._verifier.resolve()
        reduced = self._reduce(step, vote)
        # The gradient is summed, and nothing is changed yet. Every check from here to `_publish`
        # has the same input on all members, so all commit the step or none does.
        check_user_states(self._group, reduced)
        self._replicas.check(step, reduced.replica_digests)
        if self._verifier.find_dispute():
            self._replicas.check_all(step)  # a wrong weight causes that, too
            return None
        if not is_finite(reduced.norm):
            self._replicas.check_all(step)  # a wrong weight causes that, too
            if self._non_finite == "recompute":
                reduced = self._reduce(step, vote)  # the error may be in the sum
        if is_finite(reduced.norm):
            if self._clip_norm is not None and reduced.norm > self._clip_norm:
                self._reducer.scale_gradient(self._clip_norm / (reduced.norm + 1e-6), step)
        elif self._non_finite == "recompute":
            self._begin_recheck(step)
            return None
        elif self._non_finite == "stop" and scale == 1:
            raise not_finite(step, self._norms())
        return self._publish(step, reduced)

    def _publish(self, step: int, reduced: Reduced) -> StepCommitted:
        """Commit a step whose result all members have."""
        # From here on the step is decided: an aborted worker completes it from the root slot.
        self._status[Word.REDUCED_STEP] = step + 1
        if self._group.network is not None:  # every host can complete the step from now on
            self._group.barrier(WorkerTag.COMMIT, step)
        return self._apply(step, reduced)

    def _reduce(self, step: int, vote: CommitVote) -> Reduced:
        reduced = self._reducer.reduce(self._sums.table, step, vote.value, vote.replica, vote.times)
        reduced = self._with_norm(reduced)
        return replace(reduced, norm=self._replicas.common_norm(step, reduced.norm))

    def _with_norm(self, reduced: Reduced) -> Reduced:
        """The result with the norm that a lone worker would find; see `gradient_norm`."""
        device = self._replica.flat.device
        if device.type == "cpu":
            return reduced
        norm, _ = norm_of_norms([each.to(device) for each in self._root_gradients])
        return replace(reduced, norm=float(norm))

    def complete(self, step: int) -> StepCommitted:
        """Implements `Stepper.complete`."""
        return self._apply(step, self._with_norm(self._reducer.reduced()))

    def _apply(self, step: int, reduced: Reduced) -> StepCommitted:
        self._status.enter(Phase.OPTIMIZER)
        # A worker that dies between here and `WorkerState.commit` leaves no replica to use.
        self._sections.intact.begin_change(self._group.rank)
        if is_finite(reduced.norm):
            self._update(reduced)
        self.restart()
        self._verifier.begin(step + 1)
        return commit_step(self._status, step, reduced, reduced.norm)

    def _norms(self) -> dict[str, float]:
        """The norm of each parameter's mean gradient."""
        return dict(zip(self._names, map(norm_of, self._root_gradients), strict=True))

    def _begin_recheck(self, step: int) -> None:
        self._lending.write_back()
        self._group.barrier(WorkerTag.RECHECK, step)  # all slots are whole
        self._recheck = Recheck(
            self._group,
            self._sections.reduction,
            self._reducer.published(),
            self._sections.num_leaves,
        )

    def _update(self, reduced: Reduced) -> None:
        """Step the optimizer with the gradients in the root slot, and commit the buffers.

        All workers read that slot, and some optimizers write to the gradients (SGD with Nesterov
        momentum, if it updates all parameters together; one that clips). What an optimizer writes
        stays in this process: it gets private pages, or copies once it is known to write. On a GPU
        it gets copies anyway.
        """
        used = reduced.used.tolist()
        gradients = self._sections.private_gradients
        if self._replica.flat.device.type != "cpu":
            gradients = self._root_gradients
        elif self.on_gradients is not None or not self._optimizer_reads_only:
            gradients = [gradient.clone() for gradient in self._root_gradients]
        # Autograd counts writes: so it is known afterwards whether the optimizer has made any.
        versions = [gradient._version for gradient in gradients]
        # No gradient where no shard used the parameter, so that the optimizer leaves it alone.
        for parameter, gradient, was_used in zip(self._parameters, gradients, used, strict=False):
            parameter.grad = gradient.to(parameter.device, non_blocking=True) if was_used else None
        if self.on_gradients is not None:
            self.on_gradients()
        self._replica.step_optimizers()
        if versions != [gradient._version for gradient in gradients]:
            self._optimizer_reads_only = False
        self._pass.forget_gradients()
        self._replica.capture_optimizers()  # it may keep a gradient that it has written to
        self._sections.drop_private_writes()  # also writes that autograd does not count
        changed = reduced.used[len(self._parameters) :]
        self.buffers.take(self._sections.root, changed, reduced.kept)

    @property
    def _current_sums(self) -> PartialSums[Slot]:
        """Partial sums that take the shards that are computed now."""
        return self._sums if self._recheck is None else self._recheck.sums

    def _complete(self, shard: _SlotShard, weight: float) -> None:
        """Write what a shard leaves, apart from its gradients, to its slot."""
        slot = shard.slot
        changed = self.buffers.write_to(slot, weight)
        slot.write_used([*shard.fired, *changed.tolist()])
        slot.write_logged(shard.logged, weight)
        if self._recheck is not None:
            self._recheck.examine(shard.leaf, slot)
        elif self._verifier.checks(shard.leaf):
            self._verifier.publish(shard.leaf, self._digest(shard))

    def _digest(self, shard: _SlotShard) -> int:
        return digest_of(
            float(shard.slot.stats[LOSS]), shard.raw_gradients, self.buffers.current_values()
        )

    def _collect(self, shard: _SlotShard, gradients: Gradients, loss: torch.Tensor) -> None:
        """Move gradients into the shard's slot, or lend them."""
        assert shard.weight is not None, "gradients without a weight"
        shard.slot.stats[WEIGHT] = shard.weight
        shard.slot.stats[LOSS] = shard.weight * loss.detach().double()  # waits for a GPU
        if shard.verify_only or self._verifier.checks(shard.leaf):
            shard.raw_gradients = [gradient for gradient in gradients if gradient is not None]
        if shard.verify_only:
            return
        if shard.lends_gradients:
            self._lending.write(shard.slot, gradients)
        else:
            shard.slot.write_gradients(gradients)
