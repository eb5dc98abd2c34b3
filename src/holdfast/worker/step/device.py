"""A step whose gradients stay on the devices that compute them.

    for each shard:   begin_shard ─▶ (user: forward, loss) ─▶ backward ─▶ end_shard
    then once:        commit: add what is left ─▶ norm ─▶ clip ─▶ optimizer ─▶ buffers ─▶ commit

Sums are formed along the tree of `core.step.tree`, so the weights are those of `worker.step.tree`.
The tensors of autograd are added in place. A lone worker's optimizer reads them: with one shard,
nothing is added or copied. Several workers publish what each of them has added, and get the mean of
all; see `collectives.device_sums`. The host waits for the update of a step once, a step later; see
`finite_check`.

A worker that is lost takes its sums along: its shards of that one step are computed again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from holdfast.arena.memory import Phase, Word
from holdfast.collectives.barrier_tags import WorkerTag
from holdfast.collectives.device_sums import DeviceSums
from holdfast.collectives.exact import TreeReducer
from holdfast.collectives.gradient_sets import Gradients, GradientSet, multiply
from holdfast.collectives.reduction import Reduced
from holdfast.collectives.slot import SlotLayout
from holdfast.core.balance.times import StepTimes
from holdfast.core.step.plan import Plan, WorkItem
from holdfast.worker.process_groups.device_messages import ProcessGroupMessages
from holdfast.worker.step.buffers import Buffers
from holdfast.worker.step.commit import (
    CommitVote,
    PendingOutcome,
    RequestFlags,
    StepCommitted,
    StepOutcome,
    check_user_states,
    requests_of,
)
from holdfast.worker.step.finite_check import begin_readback, clip, skips_by_itself, step_unless
from holdfast.worker.step.gradient_norm import MAX_FINITE_NORM, is_finite, norm_on
from holdfast.worker.step.shard_pass import ShardPass
from holdfast.worker.step.shard_work import CurrentShard, PartialSums
from holdfast.worker.step.stepper import StepContext, Work


class DeviceStepper:
    """Computes steps on one worker; see `worker.step.stepper` for what its methods do."""

    def __init__(self, context: StepContext) -> None:
        self._replica = replica = context.replica
        worker = context.worker
        self._job = worker.job
        self._group = worker.group
        self._status = worker.status
        self._replicas = context.replicas
        sections = context.sections
        self._intact = sections.intact
        device = replica.flat.device
        rest = SlotLayout({}, replica.model_buffers)
        self._sums = PartialSums(device, rest, sections.num_slots, sections.num_leaves)
        self.work_items: Sequence[WorkItem] = ()
        self.needs_every_worker = False
        self.sends_whole = False
        self.on_gradients: Callable[[], object] | None = None
        self.buffers = Buffers(replica, rest)
        self._names = list(context.trained)
        self._pass = ShardPass[CurrentShard](context, self.buffers, self._collect)
        self._mean = GradientSet(rest, device)
        self._norm = norm_on(device, context.trained, replica.model_buffers)
        begin_reduce = functools.partial(self._status.enter, Phase.REDUCE)
        is_between = worker.job.exchange == "nccl"
        self._messages = ProcessGroupMessages(worker, device) if is_between else None
        self._device_sums = DeviceSums(
            self._group, sections.reduction, device, sections.mapped, self._messages
        )
        self._reducer = TreeReducer(
            self._group, sections.reduction, sections.num_leaves, begin_reduce, self._device_sums
        )
        self._members = self._group.members
        self.restart()

    def restart(self) -> None:
        """Implements `Stepper.restart`; a commit begins the next step alike."""
        self._pass.begin_step()
        self._sums.clear()

    def assign(self, step: int, plan: Plan) -> None:  # noqa: ARG002  # the protocol's
        """Implements `Stepper.assign`."""
        self.work_items = self._job.work_items(plan, self._group.member_index)

    def resume(self, step: int) -> None:
        """Implements `Stepper.resume`; sums of leaves that moved to another member stay usable."""
        if self._messages is not None:
            self._messages.connect()
        self._reducer.assign_blocks()
        is_changed = self._members != self._group.members
        self._members = self._group.members
        # The new plan may merge other shards, or leave more partial sums.
        if self._job.merges_shards or (is_changed and not self._sums.has_capacity):
            self.restart()
        # From here on every member knows which leaves are computed, by any member.
        self._sums.tables_of_members = self._reducer.gather_tables(self._sums.table, step)

    def next_work(self) -> Work | None:
        """Implements `Stepper.next_work`."""
        items = (item for item in self.work_items if not self._sums.covers(item.leaf))
        return next((Work(item, is_check=False) for item in items), None)

    def begin_shard(self, work: Work, seed: int) -> None:
        """Implements `Stepper.begin_shard`."""
        shard = CurrentShard(leaf=work.item.leaf, number=self._sums.take())
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
        if shard is not None:
            self._sums.take_buffers(shard, self.buffers)
            self._sums.complete(shard)

    def skip_shard(self, work: Work) -> None:
        """Implements `Stepper.skip_shard`."""
        self._sums.skip(work.item.leaf)

    def abandon(self) -> None:
        """Implements `Stepper.abandon`."""
        self._pass.abandon()
        self.restart()

    def commit(self, step: int, vote: CommitVote, scale: int) -> StepCommitted:
        """Implements `Stepper.commit`."""
        self.sends_whole = True  # no gradient is compressed here
        self._status.enter(Phase.REDUCE)
        stops = self._job.non_finite == "stop" and scale == 1
        if len(self._group.members) == 1:
            mean = self._sums.mean(step)
            self._status[Word.REDUCED_STEP] = step + 1
            return self._apply(step, mean, vote.requests, (vote.times,), stops=stops)
        table = self._device_sums.publish(self._sums.table, self._sums.sets.__getitem__)
        reduced = self._reducer.reduce(table, step, vote.value, vote.replica, vote.times)
        # The gradient is summed, and nothing is changed yet: all members commit the step, or none.
        check_user_states(self._group, reduced)
        self._replicas.check(step, reduced.replica_digests)
        # From here on the step is decided: an aborted worker completes it from the shares.
        self._status[Word.REDUCED_STEP] = step + 1
        if self._group.network is not None:  # every host can complete the step from now on
            self._group.barrier(WorkerTag.COMMIT, step)
        return self._apply_reduced(step, reduced, stops=stops)

    def complete(self, step: int) -> StepCommitted:
        """Implements `Stepper.complete`."""
        # With scaled losses a member that stops does so before any commits.
        stops = self._job.non_finite == "stop" and self._job.precision != "fp16"
        # Others get the state of this worker next, so it has to know what the step comes to.
        return self._apply_reduced(step, self._reducer.reduced(), stops=stops, is_completed=True)

    def _apply_reduced(
        self, step: int, reduced: Reduced, *, stops: bool, is_completed: bool = False
    ) -> StepCommitted:
        self._mean.take(reduced, self._device_sums.root)
        requests = requests_of(reduced.votes)
        times = reduced.step_times
        return self._apply(
            step, self._mean, requests, times, stops=stops, is_completed=is_completed
        )

    def _apply(
        self,
        step: int,
        mean: GradientSet,
        requests: RequestFlags,
        times: tuple[StepTimes, ...],
        *,
        stops: bool,
        is_completed: bool = False,
    ) -> StepCommitted:
        """Check, clip, update and commit."""
        norm, norms = self._norm(mean.gradients)
        stats = mean.rest.stats
        # Without a gradient the norm is a number on the host.
        values = torch.cat([stats, norm.view(1).to(stats.device)])
        wait = begin_readback(values)
        pending = PendingOutcome(step=step, names=mean.names, stops=stops)

        def outcome() -> StepOutcome:
            return pending.read(wait(), lambda: dict(zip(self._names, norms(), strict=True)))

        gradients = [each for each in mean.gradients if each is not None]
        most = self._job.clip_norm
        # Either the device decides, or the host knows before anything changes.
        decided = outcome() if is_completed or not self._defers(gradients) else None
        if decided is not None and not is_completed:
            common = self._replicas.common_norm(step, decided.norm)
            decided = replace(decided, norm=common, skipped=not is_finite(common))
        if most is not None and decided is None:
            clip(gradients, norm, most)
        elif most is not None and decided is not None and most < decided.norm < math.inf:
            multiply(gradients, most / (decided.norm + 1e-6))
        self._status.enter(Phase.OPTIMIZER)
        # A worker that dies between here and `WorkerState.commit` leaves no replica to use.
        self._intact.begin_change(self._group.rank)
        if decided is None:
            self._intact.leave_outcome(values)
        if decided is None or not decided.skipped:
            is_bad = ~(norm < MAX_FINITE_NORM)  # also if it is NaN
            self._update(mean, is_bad if decided is None else None)
        self.restart()
        # The count of steps comes last: a reader of it finds the loss of that step, if it is known.
        if decided is not None:
            self._status.loss = decided.loss
        self._status[Word.COMMITTED] = step + 1
        return StepCommitted(
            step=step,
            outcome=outcome if decided is None else lambda: decided,
            pending=pending if decided is None else None,
            requests=requests,
            times=times,
        )

    def _defers(self, gradients: Sequence[torch.Tensor]) -> bool:
        """True if the device alone can decide on a step with these gradients."""
        return (
            self.on_gradients is None
            and not self._replicas.tolerates
            and self._job.precision != "fp16"
            and skips_by_itself(self._replica.optimizers)
            and (
                self._job.clip_norm is None
                or all(each.dtype is torch.float32 for each in gradients)
            )
        )

    def _update(self, mean: GradientSet, is_bad: torch.Tensor | None) -> None:
        """Step the optimizers and commit the buffers, unless `is_bad` is True on the device."""
        gradients = mean.gradients
        # User code may keep what it sees; the memory of a mean of several workers is used again.
        if mean is self._mean and self.on_gradients is not None:
            gradients = [None if each is None else each.clone() for each in gradients]
        # No gradient where no shard used the parameter, so that the optimizer leaves it alone.
        for parameter, gradient in zip(self._pass.parameters, gradients, strict=True):
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
        self._sums.sets[shard.number].begin(gradients, shard.weight, loss)
