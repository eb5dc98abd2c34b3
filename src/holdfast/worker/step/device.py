"""A step of a lone worker whose gradient stays on the device that computes it.

    for each shard:   begin_shard ─▶ (user: forward, loss) ─▶ backward ─▶ end_shard
    then once:        commit: add what is left ─▶ norm ─▶ clip ─▶ optimizer ─▶ buffers ─▶ commit

Sums are formed along the tree of `core.step.tree`, so the weights are those of `worker.step.tree`.
There is no other worker to read them: the tensors of autograd are added in place, and the optimizer
reads them. With one shard, nothing is added or copied. The host waits for the device once, a step
later; see `finite_check`.

A worker that is lost takes its sums along: its shards of that one step are computed again.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from holdfast.arena.memory import Phase, Word
from holdfast.collectives.reduction import check_summed, check_weight
from holdfast.collectives.slot import LOGGED, LOSS
from holdfast.core.step import tree
from holdfast.core.step.plan import Plan, WorkItem
from holdfast.worker.step.buffers import Buffers
from holdfast.worker.step.commit import CommitVote, StepCommitted, StepOutcome
from holdfast.worker.step.finite_check import begin_readback, clip, skips_by_itself, step_unless
from holdfast.worker.step.gradient_norm import MAX_FINITE_NORM, is_finite, norm_on, not_finite
from holdfast.worker.step.gradient_sets import GradientSet, multiply
from holdfast.worker.step.shard_pass import ShardPass
from holdfast.worker.step.shard_work import CurrentShard, Gradients, PartialSums
from holdfast.worker.step.stepper import StepContext, Work


class DeviceStepper:
    """Computes steps on a lone worker; see `worker.step.stepper` for what its methods do.

    Args:
        context: Its slots hold no gradients.
    """

    def __init__(self, context: StepContext) -> None:
        self._replica = replica = context.replica
        worker = context.worker
        self._job = worker.job
        self._rank = worker.group.rank
        self._status = worker.status
        self._intact = context.sections.intact
        self._num_leaves = context.sections.num_leaves
        self._num_sets = context.sections.num_slots
        device = replica.flat.device
        layout = context.sections.slot_layout
        self.work_items: Sequence[WorkItem] = ()
        self.needs_every_worker = False
        self.on_gradients: Callable[[], object] | None = None
        self.buffers = Buffers(replica, layout)
        self._names = list(context.trained)
        self._pass = ShardPass[CurrentShard](context, self.buffers, self._collect)
        self._sets = defaultdict[int, GradientSet](functools.partial(GradientSet, layout, device))
        self._norm = norm_on(device, context.trained, replica.model_buffers)
        self.restart()

    def restart(self) -> None:
        """Implements `Stepper.restart`; a commit begins the next step alike."""
        self._pass.begin_step()
        for each in self._sets.values():
            each.gradients = []
        self._sums = PartialSums(self._sets.__getitem__, self._num_sets, self._num_leaves)

    def assign(self, step: int, plan: Plan) -> None:  # noqa: ARG002  # the protocol's
        """Implements `Stepper.assign`."""
        self.work_items = self._job.work_items(plan, 0)

    def resume(self, step: int) -> None:
        """Implements `Stepper.resume`; what this worker has computed of the step stays usable."""

    def next_work(self) -> Work | None:
        """Implements `Stepper.next_work`."""
        items = (item for item in self.work_items if not self._sums.covers(item.leaf))
        return next((Work(item, is_check=False) for item in items), None)

    def begin_shard(self, work: Work, seed: int) -> None:
        """Implements `Stepper.begin_shard`."""
        shard = CurrentShard(leaf=work.item.leaf, number=self._sums.take_slot())
        self._pass.begin(shard, seed)

    def backward(
        self, loss: torch.Tensor, weight: float, scale: int, trains: nn.Module | None = None
    ) -> None:
        """Implements `Stepper.backward`."""
        self._pass.backward(loss, weight, scale, trains)

    def log(self, values: Mapping[str, Any]) -> None:
        """Implements `Stepper.log`."""
        self._pass.log(values)

    def end_shard(self) -> None:
        """Complete the shard's set and add it to its sibling's, if that is here."""
        shard = self._pass.end()
        if shard is None:
            return
        if not shard.weight:
            self._sums.give_back(shard.number)
            self._sums.enter(shard.leaf, tree.EMPTY)
            return
        own = self._sums.slots(shard.number)
        own.rest.used.copy_(self.buffers.write_to(own.rest, shard.weight))
        own.write_logged(shard.logged)
        self._sums.enter(shard.leaf, shard.number)

    def skip_shard(self, work: Work) -> None:
        """Implements `Stepper.skip_shard`."""
        self._sums.enter(work.item.leaf, tree.EMPTY)

    def abandon(self) -> None:
        """Implements `Stepper.abandon`."""
        self._pass.abandon()
        self.restart()

    def commit(self, step: int, vote: CommitVote, scale: int) -> StepCommitted:
        """Implements `Stepper.commit`."""
        self._status.enter(Phase.REDUCE)
        mean = self._mean(step)
        norm, norms = self._norm(mean.gradients)
        stats = mean.rest.stats
        # Without a gradient the norm is a number on the host.
        wait = begin_readback(torch.cat([stats, norm.view(1).to(stats.device)]))
        stops = self._job.non_finite == "stop" and scale == 1
        outcome = functools.partial(self._outcome, step, mean.names, norms, wait, stops=stops)
        gradients = [each for each in mean.gradients if each is not None]
        most = self._job.clip_norm
        # Either the device decides, or the host knows before anything changes.
        known = None if self._defers(gradients) else outcome()
        if most is not None and known is None:
            clip(gradients, norm, most)
        elif most is not None and known is not None and most < known.norm < math.inf:
            multiply(gradients, most / (known.norm + 1e-6))
        self._status.enter(Phase.OPTIMIZER)
        self._status[Word.REDUCED_STEP] = step + 1
        # A worker that dies between here and `WorkerState.commit` leaves no replica to use.
        self._intact.begin_change(self._rank)
        if known is None or not known.skipped:
            is_bad = ~(norm < MAX_FINITE_NORM)  # also if it is NaN
            self._update(mean, is_bad if known is None else None)
        self.restart()
        # The count of steps comes last: a reader of it finds the loss of that step, if it is known.
        if known is not None:
            self._status.loss = known.loss
        self._status[Word.COMMITTED] = step + 1
        return StepCommitted(
            step=step,
            outcome=outcome if known is None else lambda: known,
            is_settled=known is not None,
            requests=vote.requests,
            times=(vote.times,),
        )

    def complete(self, step: int) -> StepCommitted:
        """Never called: there is no other member that has committed a step."""
        raise AssertionError(f"step {step + 1} cannot be completed by a lone worker")

    def _mean(self, step: int) -> GradientSet:
        """The mean of all shards; their sums are used up.

        Raises:
            JobError: There is no gradient, or the weights do not add up to more than 0.
        """
        term = tree.reduction({self._rank: self._sums.table}, self._num_leaves)
        total = self._sum(check_summed(step, term))
        check_weight(step, total.weight)
        # By a tensor: a GPU multiplies by the rounded inverse of a number.
        stats = total.rest.stats
        stats.div_(torch.full_like(stats, total.weight))
        # Where weights add up to 1, but for rounding, the sum is the mean.
        if not math.isclose(total.weight, 1, rel_tol=1e-12):
            total.divide(total.weight)
        return total

    def _sum(self, term: tree.Term) -> GradientSet:
        if isinstance(term, tree.Partial):
            return self._sets[term.slot]
        left = self._sum(term.left)
        left.add(self._sum(term.right))
        return left

    def _outcome(
        self,
        step: int,
        names: Sequence[str],
        norms: Callable[[], list[float]],
        wait: Callable[[], list[float]],
        *,
        stops: bool,
    ) -> StepOutcome:
        """The outcome of a step, once the device has it.

        Raises:
            NonFiniteError: The gradient is not finite, and `stops`.
        """
        *means, total = wait()
        if stops and not is_finite(total):
            raise not_finite(step, dict(zip(self._names, norms(), strict=True)))
        logged = dict(zip(names, means[LOGGED:], strict=False))
        return StepOutcome(
            loss=means[LOSS], logged=logged, norm=total, skipped=not is_finite(total)
        )

    def _defers(self, gradients: Sequence[torch.Tensor]) -> bool:
        """True if the device alone can decide on a step with these gradients."""
        return (
            self.on_gradients is None
            and self._job.precision != "fp16"
            and skips_by_itself(self._replica.optimizers)
            and (
                self._job.clip_norm is None
                or all(each.dtype is torch.float32 for each in gradients)
            )
        )

    def _update(self, mean: GradientSet, is_bad: torch.Tensor | None) -> None:
        """Step the optimizers and commit the buffers, unless `is_bad` is True on the device."""
        # No gradient where no shard used the parameter, so that the optimizer leaves it alone.
        for parameter, gradient in zip(self._pass.parameters, mean.gradients, strict=True):
            parameter.grad = gradient
        if self.on_gradients is not None:
            self.on_gradients()
        if is_bad is None:
            self._replica.step_optimizers()
        else:
            step_unless(is_bad, self._replica.optimizers, self._replica.step_optimizers)
        self._pass.forget_gradients()
        self._replica.capture_optimizers()  # it may keep a gradient that it has written to
        self.buffers.take(mean.rest, mean.rest.used, mean.rest.kept, is_bad)

    def _collect(self, shard: CurrentShard, gradients: Gradients, loss: torch.Tensor) -> None:
        assert shard.weight is not None, "gradients without a weight"
        self._sums.slots(shard.number).begin(gradients, shard.weight, loss)
