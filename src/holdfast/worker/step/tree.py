"""A step whose gradient is summed along a fixed tree over shards: the exact one.

    for each shard:   begin_shard ─▶ (user: forward, loss) ─▶ backward ─▶ end_shard
    then once:        commit: reduce ─▶ check ─▶ clip ─▶ optimizer ─▶ buffers ─▶ commit

Each shard starts from the same weights and the same buffers, with random numbers of its own. The
loss is multiplied by the shard's weight, so autograd gives weight x gradient. That stays in its
memory, and siblings in the tree are added there as soon as both are there. What other workers read
is written to slots in the arena once, at the commit. The reduction leaves its result in the root
slot, from where the optimizer reads it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from holdfast.arena.memory import Phase, Word
from holdfast.collectives.algorithms.choice import TREE
from holdfast.collectives.algorithms.vector_sums import VectorSums
from holdfast.collectives.barrier_tags import WorkerTag
from holdfast.collectives.exact import TreeReducer
from holdfast.collectives.gradient_sets import Gradients
from holdfast.collectives.reduction import Reduced
from holdfast.collectives.slot import LOSS, SlotLayout
from holdfast.core.step.plan import Plan, WorkItem
from holdfast.rundir.run_directory import log_event
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
from holdfast.worker.step.sent_ahead import SentAhead
from holdfast.worker.step.shard_pass import ShardPass
from holdfast.worker.step.shard_work import CurrentShard, PartialSums
from holdfast.worker.step.stepper import StepContext, Work


@dataclass(slots=True, kw_only=True)
class _TreeShard(CurrentShard):
    """A shard that counts, or is checked.

    Attributes:
        verify_only: True if it is assigned to another worker, and this one only verifies it.
    """

    verify_only: bool


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
        rest = SlotLayout({}, replica.model_buffers)
        self.buffers = Buffers(replica, rest)
        self._pass = ShardPass[_TreeShard](context, self.buffers, self._collect)
        self._parameters = self._pass.parameters
        self._root_gradients = sections.root.gradients
        self._optimizer_reads_only = True  # until it writes to a gradient
        begin_reduce = functools.partial(self._status.enter, Phase.REDUCE)
        num_leaves = sections.num_leaves
        self._reducer = TreeReducer(group, sections.reduction, num_leaves, begin_reduce)
        self._ahead = SentAhead(self._parameters, layout, self._reducer)
        self._plan = 0
        self._vectors: VectorSums | None = None
        if job.adds_vectors:
            self._vectors = VectorSums(group, sections.reduction, job.collective, job.compression)
        self.sends_whole = False
        self._is_added_whole = False
        self._run_dir = context.run_dir
        self._new_sums = functools.partial(PartialSums, replica.flat.device, rest)
        self._sums = self._new_sums(sections.num_slots, num_leaves)
        self._verifier = ShardVerifier(group, sections.verification, job.verify.recompute)
        self.on_gradients: Callable[[], object] | None = None
        self._recheck: Recheck | None = None
        self._members = group.members
        self.restart()

    def restart(self) -> None:
        """Implements `Stepper.restart`; a commit begins the next step alike."""
        self._pass.begin_step()
        self._recheck = None
        self._ahead.drop()
        self._reducer.blocks.forget()
        self._sums.clear()

    def assign(self, step: int, plan: Plan) -> None:
        """Implements `Stepper.assign`."""
        self.work_items = self._job.work_items(plan, self._group.member_index)
        self._plan = plan.digest
        self._verifier.begin(step, plan)

    def resume(self, step: int) -> None:
        """Implements `Stepper.resume`; sums of leaves that moved to another member stay usable."""
        self._recheck = None
        self._ahead.cancel()
        # The same members may be on other hosts, and then blocks belong to others.
        self._reducer.assign_blocks()
        is_changed = self._members != self._group.members
        self._members = self._group.members
        if self._vectors is not None:
            self._choose(self._vectors, step)
        # The new plan may merge other shards, or leave more partial sums.
        if self._job.merges_shards or (is_changed and not self._sums.has_capacity):
            self.restart()
        # From here on every member knows which leaves are computed, by any member.
        self._sums.tables_of_members = self._reducer.gather_tables(self._sums.table, step)

    def _choose(self, vectors: VectorSums, step: int) -> None:
        """Get ready to add vectors with the members of a new generation."""
        chosen = vectors.begin_generation(step, self._sums.num_leaves)
        self._is_added_whole = vectors.name != TREE
        self._reducer.add_vectors(vectors if self._is_added_whole else None)
        if self._group.member_index != 0:
            return
        if chosen is not None:
            log_event(self._run_dir, "collective-chosen", step=step, **chosen.fields())
        elif self._job.compression.is_on:
            log_event(self._run_dir, "compression-unused", step=step)

    def next_work(self) -> Work | None:
        """Implements `Stepper.next_work`."""
        items = self.work_items
        if self._recheck is not None:
            items = [WorkItem.of_shard(shard) for shard in self._recheck.shards]
        for item in items:
            if not self._current_sums.covers(item.leaf):
                return Work(item, is_check=self._recheck is not None)
        return next(
            (Work(WorkItem.of_shard(shard), is_check=True) for shard in self._verifier.pending),
            None,
        )

    def begin_shard(self, work: Work, seed: int) -> None:
        """Implements `Stepper.begin_shard`."""
        shard = _TreeShard(
            leaf=work.item.leaf,
            number=self._current_sums.take(),
            verify_only=self._is_verified_only(work),
        )
        self._pass.begin(shard, seed)

    def _is_verified_only(self, work: Work) -> bool:
        return work.is_check and self._recheck is None

    def backward(
        self, loss: torch.Tensor, weight: float, scale: int, trains: nn.Module | None = None
    ) -> None:
        """Implements `Stepper.backward`."""
        shard = self._pass.shard
        if shard is not None and weight and scale == 1 and self._is_last_between_hosts(shard):
            step = self._status[Word.COMMITTED]
            self._ahead.begin(self._sums, shard, weight, step, self._plan)
        self._pass.backward(loss, weight, scale, trains)

    def _is_last_between_hosts(self, shard: _TreeShard) -> bool:
        """True if a shard completes what this worker sends, and each host has one worker."""
        network = self._group.network
        if network is None or not network.has_background_lane or self._reducer.hosts.has_begun:
            return False
        if self._is_added_whole:  # by another algorithm, as one vector
            return False
        if shard.weight is not None or shard.verify_only or self._recheck is not None:
            return False
        left = [item.leaf for item in self.work_items if not self._sums.covers(item.leaf)]
        return left == [shard.leaf] and self._replica.flat.is_cpu

    def log(self, values: Mapping[str, Any]) -> None:
        """Implements `Stepper.log`."""
        self._pass.log(values)

    def end_shard(self) -> None:
        """Complete the shard's partial sum and add it to its sibling's, if that is here."""
        shard = self._pass.end()
        if shard is None:
            return
        if shard.verify_only:
            self._verifier.record(shard.leaf, self._digest(shard) if shard.weight else None)
            self._sums.give_back(shard.number)
            return
        if shard.weight and self._recheck is not None:
            self._recheck.examine(shard.leaf, shard.number)
        elif shard.weight and self._verifier.checks(shard.leaf):
            self._verifier.publish(shard.leaf, self._digest(shard))
        self._current_sums.take_buffers(shard, self.buffers)
        if self._ahead.holds(shard):
            self._sums.keep(shard)
        else:
            self._current_sums.complete(shard)

    def skip_shard(self, work: Work) -> None:
        """Implements `Stepper.skip_shard`."""
        if self._is_verified_only(work):
            self._verifier.record(work.item.leaf, None)
        else:
            self._current_sums.skip(work.item.leaf)

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
        table = self._ahead.finish(self._sums)
        if table is None:
            table = self._reducer.blocks.publish(
                self._sums.table, self._sums.sets.__getitem__, whole=self._is_added_whole
            )
        reduced = self._reduce(table, step, vote)
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
                reduced = self._reduce(table, step, vote)  # the error may be in the sum
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

    def _reduce(self, table: Sequence[int], step: int, vote: CommitVote) -> Reduced:
        if self._vectors is not None:
            self.sends_whole |= not self._vectors.compresses
            self._vectors.sends_whole = self.sends_whole
        reduced = self._reducer.reduce(table, step, vote.value, vote.replica, vote.times)
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
        elif self._vectors is not None:
            self._vectors.undo(step)
        self.restart()
        self._verifier.begin(step + 1)
        return commit_step(self._status, step, reduced, reduced.norm)

    def _norms(self) -> dict[str, float]:
        """The norm of each parameter's mean gradient."""
        return dict(zip(self._names, map(norm_of, self._root_gradients), strict=True))

    def _begin_recheck(self, step: int) -> None:
        self._reducer.blocks.publish(self._sums.table, self._sums.sets.__getitem__, whole=True)
        self._group.barrier(WorkerTag.RECHECK, step)  # all slots are whole
        num_leaves = self._sums.num_leaves
        recomputed = self._new_sums(num_leaves, num_leaves)
        self._recheck = Recheck(
            self._group, self._sections.reduction, self._reducer.published(), recomputed
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
    def _current_sums(self) -> PartialSums:
        """Partial sums that take the shards that are computed now."""
        return self._sums if self._recheck is None else self._recheck.sums

    def _digest(self, shard: CurrentShard) -> int:
        current = self._current_sums.sets[shard.number]
        gradients = [each for each in current.gradients if each is not None]
        return digest_of(float(current.rest.stats[LOSS]), gradients, self.buffers.current_values())

    def _collect(self, shard: CurrentShard, gradients: Gradients, loss: torch.Tensor) -> None:
        assert shard.weight is not None, "gradients without a weight"
        self._ahead.end_backward(gradients)
        self._current_sums.sets[shard.number].begin(gradients, shard.weight, loss)
