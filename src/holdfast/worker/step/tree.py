"""One step: shard gradients in, committed weights out.

    for each shard owed:   begin_shard ─▶ (user: forward, loss) ─▶ backward ─▶ end_shard
    then once:             commit: reduce ─▶ check ─▶ clip ─▶ optimizer ─▶ buffers ─▶ commit

Each shard starts from the same weights and the same buffers, with random numbers of its own. The
loss is multiplied by the shard's weight, so autograd gives weight x gradient. That is written to
the shard's slot in the arena, and never copied again. Siblings in the tree are added as soon as
both are there. What the reduction leaves in the root slot is what the optimizer reads.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager

import torch

from holdfast.arena.memory import Phase, Word
from holdfast.arena.replica import Replica
from holdfast.arena.tensors import copy_past_cache
from holdfast.collectives.exact import Reduced, ReduceTag, TreeReducer
from holdfast.collectives.slot import LOSS, WEIGHT
from holdfast.core import tree
from holdfast.core.plan import Plan
from holdfast.data.dataset import seed_everything
from holdfast.errors import JobError
from holdfast.worker.barriers import WorkerTag
from holdfast.worker.checks.replica_checker import ReplicaChecker
from holdfast.worker.checks.shard_verifier import ShardVerifier, digest_of
from holdfast.worker.context import WorkerContext
from holdfast.worker.sections import Sections
from holdfast.worker.step.buffers import Buffers
from holdfast.worker.step.committed import Committed, CommitVote, check_user_states, commit_step
from holdfast.worker.step.current_shard import CurrentShard, check_logged_count, check_loss
from holdfast.worker.step.finite import is_finite, not_finite
from holdfast.worker.step.partials import PartialSums
from holdfast.worker.step.recheck import Recheck


class Stepper:
    """Computes steps on one worker.

    Args:
        replica: What is trained.
        sections: The shared memory.
        comparison: Of the replica with those of others.
        context: Of this worker.
    """

    def __init__(
        self,
        replica: Replica,
        sections: Sections,
        comparison: ReplicaChecker,
        context: WorkerContext,
    ) -> None:
        group = context.group
        self._replica, self._sections, self._group = replica, sections, group
        self._failpoints = context.failpoints
        self._comparison = comparison
        self._status = context.status
        self._clip_norm, self._non_finite = context.job.clip_norm, context.job.non_finite
        layout = sections.slot_layout
        self._names = layout.parameter_names
        self._parameters = [replica.parameters[name] for name in self._names]
        self._buffers = Buffers(replica, layout)
        self._root_gradients = sections.root.gradients
        self._optimizer_reads_only = True  # until it is seen to write to the gradients
        self._reducer = TreeReducer(
            group,
            tables=sections.tables,
            norms=sections.norms,
            slots=sections.slot,
            root=sections.root,
            layout=layout,
            num_leaves=sections.num_leaves,
        )
        self._verifier = ShardVerifier(group, sections.verification, context.job.verify.recompute)
        self._shard: CurrentShard | None = None
        self._recheck: Recheck | None = None
        self._members, self._one_unit, self._lone = group.members, False, False
        self._theirs: list[list[int]] = []
        self.restart()

    def restart(self) -> None:
        """Begin the step anew, from the replica as it is."""
        if self._shard is not None:
            self._shard.discarded = True
        self._reducer.end_lending()
        self._begin_step()

    def commit_buffers(self) -> None:
        """Make what user code has left in the model's buffers between two steps part of the state.

        Raises:
            JobError: A buffer is new, is gone, or has another shape than at the start.
        """
        self._buffers.commit()

    def committed_buffers(self) -> AbstractContextManager[None]:
        """Have the model compute with the buffers of the newest commit meanwhile."""
        return self._buffers.committed()

    def release_buffers(self) -> None:
        """Leave the model's buffers alone from now on."""
        self._buffers.release()

    def assign_shards(self, step: int, plan: Plan, *, one_unit: bool, keep: bool) -> None:
        """Agree with the members that there are now on what is left of the step in hand.

        Args:
            step: Which.
            plan: Who of them computes which shards.
            one_unit: Whether this worker computes one unit a step.
            keep: Whether its partial sums are of use to these members too.

        Raises:
            Aborted: The generation is over.
        """
        self._one_unit, self._recheck = one_unit, None
        self._verifier.begin(step, plan)
        if self._members != self._group.members:
            self._members = self._group.members
            self._reducer.write_lent(self._sums.slots(0))
            self._reducer.assign_blocks()
            if not (keep and self._sums.has_room):
                self.restart()
        self._lone = one_unit and self._shard is None and self._sums.is_empty
        self._reducer.publish(self._sums.table)
        self._group.barrier(ReduceTag.TABLES, step)
        self._theirs = list(self._reducer.published().values())

    def has(self, leaf: int) -> bool:
        """Whether some member has computed `leaf` in this step already, or this one again."""
        sums, node = self._sums_in_hand, tree.leaf(leaf, self._sections.num_leaves)
        theirs = self._theirs if self._recheck is None else []
        return any(tree.covers(table, node) for table in (sums.table, *theirs))

    @property
    def to_verify(self) -> list[int]:
        """The shards that this worker computes for no other purpose than to verify them."""
        return self._verifier.pending

    @property
    def verifies(self) -> bool:
        """Whether the current shard is one of these."""
        return self._shard is not None and self._shard.verify_only

    def begin_shard(self, leaf: int, seed: int, *, again: bool = False) -> None:
        """Get ready for a shard.

        Args:
            leaf: Which leaf it fills.
            seed: From where its random numbers start.
            again: Whether it is only verified.
        """
        number = self._sums_in_hand.take_slot()
        slot = self._sums_in_hand.slots(number)
        slot.stats.zero_()
        self._buffers.begin()
        fired = [False] * len(self._parameters)
        self._shard = CurrentShard(
            leaf=leaf, number=number, slot=slot, fired=fired, verify_only=again
        )
        seed_everything(seed)

    def backward(self, loss: torch.Tensor, weight: float) -> None:
        """Record the gradient of one shard.

        Args:
            loss: The mean over the shard, a scalar.
            weight: What the shard counts for; usually its part of the step's samples, so that all
                weights add up to one. It is rounded to the loss's dtype.

        Raises:
            JobError: The loss is not a scalar that depends on the model, or this is the second
                call for the shard.
        """
        shard = self._shard
        assert shard is not None, "backward without a shard"
        if shard.weight is not None:
            raise JobError(
                "session.backward was called twice for one shard; add the losses and call it once"
            )
        check_loss(loss)
        shard.weight = weight
        shard.slot.stats[WEIGHT] = weight
        shard.slot.stats[LOSS] = weight * loss.detach().double()
        self._check_no_gradients()
        (loss * weight).backward()  # type: ignore[no-untyped-call]
        self._failpoints.at_gradient(self._parameters)
        if shard.discarded:
            self._forget_gradients()
        else:
            self._collect(shard)

    def log(self, values: dict[str, float]) -> None:
        """Add values to what the current shard logs.

        Raises:
            JobError: There are more than fit.
        """
        assert self._shard is not None, "log without a shard"
        self._shard.logged |= values
        check_logged_count(self._shard.logged)

    def end_shard(self) -> None:
        """Complete the shard's partial sum and add it to its sibling's, where that is here."""
        shard, self._shard = self._shard, None
        assert shard is not None, "no shard was begun"
        if shard.discarded:
            self._forget_gradients()
        elif shard.verify_only:
            self._sums_in_hand.give_back(shard.number)
            self._verifier.note(shard.leaf, self._digest(shard))
        elif shard.weight is None:
            self._check_no_gradients()
            self._sums_in_hand.give_back(shard.number)
            self.skip_shard(shard.leaf)
        else:
            self._complete(shard, shard.weight)
            self._sums_in_hand.enter(shard.leaf, shard.number)

    def skip_shard(self, leaf: int, *, again: bool = False) -> None:
        """Account for a shard that has no samples, or taught nothing: it weighs nothing."""
        if again:
            self._verifier.note(leaf, None)
            return
        self._sums_in_hand.enter(leaf, tree.EMPTY)

    def abandon(self) -> None:
        """Forget what was computed of a step that will not be committed."""
        self._shard = None
        self._forget_gradients()
        self.restart()

    @property
    def rechecked(self) -> list[int]:
        """The shards that this worker computes again in a recheck."""
        return [] if self._recheck is None else self._recheck.shards

    def commit(self, step: int, brought: CommitVote) -> Committed | None:
        """Reduce, check, clip, update and commit.

        Args:
            step: The step that the shards belong to.
            brought: What this worker tells the others.

        Returns:
            The step; None if its gradient is in doubt: once what is `rechecked`, or is `to_verify`,
            has been computed, the next call tells what is to blame.

        Raises:
            Aborted: The generation is over, and the step not committed by this worker.
            NonFiniteError: The gradient is not finite; nothing was changed.
            HardwareError: It is not finite, or wrong, because of this worker.
            ReplicaError: Replicas differ, and this worker is to leave.
            UserStatesDiffer: What user code keeps is not the same on all workers.
            JobError: The shards contradict each other.
        """
        self._status.enter(Phase.REDUCE)
        if self._recheck is not None:
            self._recheck.settle(step, self._mean_gradients())
        if self._verifier.is_disputed:
            self._verifier.settle()
        reduced = self._reduce(step, brought)
        check_user_states(self._group, reduced)
        self._comparison.check(step, reduced.digests)
        if self._verifier.find_dispute():
            self._comparison.check_all(step)  # a wrong weight is a cause of that, too
            return None
        if not is_finite(reduced.norm):
            self._comparison.check_all(step)  # a wrong weight is a cause of that, too
            if self._non_finite == "recompute":
                reduced = self._reduce(step, brought)  # maybe it was the sum
        if is_finite(reduced.norm):
            if self._clip_norm is not None and reduced.norm > self._clip_norm:
                self._reducer.scale_gradient(self._clip_norm / (reduced.norm + 1e-6), step)
        elif self._non_finite == "stop":
            raise not_finite(step, self._mean_gradients())
        elif self._non_finite == "recompute":
            self._begin_recheck(step)
            return None
        self._status[Word.REDUCED_STEP] = step + 1
        return self._apply(step, reduced)

    def _reduce(self, step: int, brought: CommitVote) -> Reduced:
        return self._reducer.reduce(self._sums.table, step, brought.value, brought.replica)

    def complete(self, step: int) -> Committed:
        """Commit a step that others may have committed, when this worker had been called away."""
        return self._apply(step, self._reducer.reduced())

    def _apply(self, step: int, reduced: Reduced) -> Committed:
        self._status.enter(Phase.UPDATE)
        self._sections.intact_step[self._group.rank] = 0
        if is_finite(reduced.norm):
            self._update(reduced)
        self._reducer.end_lending()
        self._begin_step()
        self._verifier.begin(step + 1)
        return commit_step(self._status, step, reduced, reduced.norm)

    def _mean_gradients(self) -> dict[str, torch.Tensor]:
        return dict(zip(self._names, self._root_gradients, strict=True))

    def _begin_recheck(self, step: int) -> None:
        self._reducer.write_lent(self._sums.slots(0))
        self._group.barrier(WorkerTag.RECHECK, step)  # all slots are whole
        self._recheck = Recheck(
            self._group,
            self._sections.slot,
            self._sections.slot_layout,
            self._reducer.published(),
            self._sections.num_leaves,
        )

    def _update(self, reduced: Reduced) -> None:
        """Step the optimizer on what lies in the root slot, and take over the buffers.

        All workers read that slot, and some optimizers write to the gradients (SGD with Nesterov's
        momentum, where it takes all parameters together; one that clips). What one writes stays in
        this process: it is given private pages, or copies once it is known to write.
        """
        used = reduced.used.tolist()
        gradients = self._sections.private_gradients
        if not self._optimizer_reads_only:
            gradients = [gradient.clone() for gradient in self._root_gradients]
        versions = [gradient._version for gradient in gradients]
        for parameter, gradient, was_used in zip(self._parameters, gradients, used, strict=False):
            parameter.grad = gradient.to(parameter.device) if was_used else None
        self._replica.step_optimizer()
        if versions != [gradient._version for gradient in gradients]:
            self._optimizer_reads_only = False
        self._forget_gradients()
        self._replica.capture_optimizer()  # which may keep a gradient that it has written to
        self._sections.drop_private_writes()  # also those that autograd does not count
        self._buffers.take(self._sections.root, used[len(self._parameters) :], reduced.kept)

    @property
    def _sums_in_hand(self) -> PartialSums:
        """Where shards go that are computed now."""
        return self._sums if self._recheck is None else self._recheck.sums

    def _begin_step(self) -> None:
        self._lone, self._recheck = self._one_unit, None
        self._theirs = []
        own_slots = functools.partial(self._sections.slot, self._group.rank)
        self._sums = PartialSums(own_slots, self._sections.num_slots, self._sections.num_leaves)
        self._buffers.begin()

    def _complete(self, shard: CurrentShard, weight: float) -> None:
        """Write down what the shard says beside the gradients that are in its slot already."""
        slot = shard.slot
        changed = self._buffers.write_to(slot, weight)
        slot.used.copy_(torch.tensor([*shard.fired, *changed], dtype=torch.uint8))
        slot.write_logged(shard.logged, weight)
        if self._recheck is not None:
            self._recheck.look_at(shard.leaf, slot)
        elif self._verifier.concerns(shard.leaf):
            self._verifier.publish(shard.leaf, self._digest(shard))

    def _digest(self, shard: CurrentShard) -> int:
        return digest_of(
            float(shard.slot.stats[LOSS]), [*shard.raw_gradients, *self._buffers.left()]
        )

    def _collect(self, shard: CurrentShard) -> None:
        """Move the gradients that autograd has left into the shard's slot, or lend them."""
        in_doubt = shard.verify_only or self._verifier.concerns(shard.leaf)
        for index, parameter in enumerate(self._parameters):
            gradient, parameter.grad = parameter.grad, None
            if gradient is None:
                if not shard.verify_only:
                    shard.slot.gradients[index].zero_()
                continue
            if gradient.is_sparse:
                raise JobError("sparse gradients cannot be reduced; build with sparse=False")
            shard.fired[index] = True
            flat, target = gradient.contiguous().view(-1), shard.slot.flat_gradients[index]
            if in_doubt:
                shard.raw_gradients.append(flat)
            if shard.verify_only:
                continue
            lendable = self._lone and self._recheck is None and flat.device.type == "cpu"
            start, end = self._reducer.lend(index, flat) if lendable else (0, 0)
            for piece in (slice(0, start), slice(end, len(flat))):
                copy_past_cache(target[piece], flat[piece])

    def _forget_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def _check_no_gradients(self) -> None:
        if any(parameter.grad is not None for parameter in self._parameters):
            raise JobError("call session.backward(loss) instead of loss.backward()")
