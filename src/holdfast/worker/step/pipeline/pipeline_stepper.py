"""A step through the stages of a pipeline: each worker computes some of the layers of every shard.

    stage 0    F0 F1 F2 B0 F3 B1 F4 B2 …    F: forward pass of a shard, B: its backward pass
    stage 1       F0 F1 B0 F2 B1 F3 …       one forward, one backward (Narayanan et al., PipeDream,
    stage 2          F0 B0 F1 B1 …          SOSP 2019)

User code runs alike on every worker. Where `session.backward` cannot compute a gradient yet, the
shard waits for that of the next stage: stage `p` of `n` has up to `n - p` shards under way, and
computes the rest at the commit. Each worker sums the gradients of its own parameters along the tree
over shards, as a lone worker does with all of them, so the weights are those of one process. The
norm is summed over blocks of all parameters, in the memory that the workers share.

No worker has the state of another: after a failure, all are restarted from the newest checkpoint.
"""

from __future__ import annotations

import functools
import json
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from holdfast.arena.layout import Layout
from holdfast.arena.memory import Phase
from holdfast.arena.replica import Trained
from holdfast.arena.tensors import read_names, write_names
from holdfast.collectives.barrier_tags import ReduceTag, WorkerTag
from holdfast.collectives.gradient_sets import Gradients, GradientSet, multiply
from holdfast.collectives.group import Group
from holdfast.collectives.reduction import Reduced, ReductionMemory, share
from holdfast.collectives.slot import LOGGED, LOSS, SlotLayout, square
from holdfast.core.balance.times import StepTimes
from holdfast.core.step import tree
from holdfast.core.step.plan import Plan, WorkItem
from holdfast.errors import JobError
from holdfast.job.settings import ParallelSettings
from holdfast.worker.checks.optimizer_cut import can_be_divided
from holdfast.worker.context import WorkerContext
from holdfast.worker.step.buffers import Buffers
from holdfast.worker.step.commit import CommitVote, StepCommitted, check_user_states, commit_step
from holdfast.worker.step.gradient_norm import is_finite, norm_of, norm_of_norms, not_finite
from holdfast.worker.step.pipeline.model_parts import OwnParts, divide, forget_others
from holdfast.worker.step.pipeline.stage import Call, PipelineStage
from holdfast.worker.step.pipeline.stage_messages import StageMessages
from holdfast.worker.step.shard_pass import ShardPass
from holdfast.worker.step.shard_work import CurrentShard, PartialSums
from holdfast.worker.step.stepper import StepContext, Work


class PipelineStages:
    """Divides a model, then builds the stepper of the part that is left.

    Args:
        parallel: Division of it.
    """

    def __init__(self, parallel: ParallelSettings) -> None:
        self._parallel = parallel
        self._own: OwnParts | None = None

    def divide(self, trained: Trained, layout: Layout, worker: WorkerContext) -> Trained:
        """Keep this worker's part of what is trained; see `StepperFactory.divide`.

        Raises:
            JobError: The model or an optimizer cannot be divided.
        """
        parallel = self._parallel
        divided, self._own = divide(trained, layout, worker.group.member_index, parallel)
        for optimizer in trained.optimizers:
            if not can_be_divided(optimizer, divided.model_parameters().values()):
                raise JobError(
                    f"{parallel.words} does not support {type(optimizer).__name__}, whose step for "
                    "one parameter depends on others; set clip_norm instead of a limit of its "
                    "own, or use another optimizer, such as AdamW"
                )
        forget_others(trained, self._own)
        return divided

    def build(self, context: StepContext) -> PipelineStepper:
        """The stepper, once the model is divided."""
        assert self._own is not None, "a model that is not divided"
        return PipelineStepper(self._own, context)


@dataclass(slots=True, kw_only=True)
class _StageShard(CurrentShard):
    """A shard on one stage.

    Attributes:
        calls: Its calls of the model.
        scale: Scale of its loss.
    """

    calls: list[Call] = field(default_factory=list)
    scale: int = 1


class PipelineStepper:
    """Computes the steps of one stage; see `worker.step.stepper` for what its methods do.

    Args:
        own: The layers of this worker.
        context: Its slots hold all parameters of the model.

    Raises:
        JobError: The port is in use.
    """

    def __init__(self, own: OwnParts, context: StepContext) -> None:
        self._own = own
        self._replica = replica = context.replica
        worker = context.worker
        self._job = worker.job
        self._group = worker.group
        self._status = worker.status
        sections = context.sections
        self._intact = sections.intact
        self._root = sections.root
        self._times = sections.reduction.times
        device = replica.flat.device
        self.work_items: Sequence[WorkItem] = ()
        self.needs_every_worker = False
        self.sends_whole = False
        self.on_gradients: Callable[[], object] | None = None
        rest = SlotLayout({}, replica.model_buffers)
        self.buffers = Buffers(replica, rest)
        self._pass = ShardPass[_StageShard](context, self.buffers, self._collect)
        self._norm = StageNorm(self._group, sections.reduction, list(context.trained), device)
        self._stage = PipelineStage(own, StageMessages(worker, device), device)
        # Besides partial sums, there are the shards under way.
        num_sums = tree.max_partials(sections.num_leaves) + own.number
        self._sums = PartialSums(device, rest, num_sums, sections.num_leaves)
        replica.model.forward = self._stage.forward
        self.restart()

    def restart(self) -> None:
        """Implements `Stepper.restart`; a commit begins the next step alike."""
        self._pass.begin_step()
        self._stage.on_change()
        self._under_way = deque[_StageShard]()
        self._sums.clear()

    def assign(self, step: int, plan: Plan) -> None:  # noqa: ARG002  # the protocol's
        """Compute all shards, whatever the plan: each passes through every stage."""
        self.work_items = [WorkItem.of_shard(shard) for shard in range(self._job.shards)]

    def resume(self, step: int) -> None:
        """Begin a step with the others; nothing remains of one that was under way."""
        self.restart()
        self._share_uninitialized(step)

    def next_work(self) -> Work | None:
        """Implements `Stepper.next_work`."""
        begun = {shard.leaf for shard in self._under_way}
        items = (
            item
            for item in self.work_items
            if item.leaf not in begun and not self._sums.covers(item.leaf)
        )
        return next((Work(item, is_check=False) for item in items), None)

    def begin_shard(self, work: Work, seed: int) -> None:
        """Implements `Stepper.begin_shard`."""
        self._stage.begin_shard()
        shard = _StageShard(leaf=work.item.leaf, number=self._sums.take())
        self._pass.begin(shard, seed)

    def backward(
        self, loss: torch.Tensor, weight: float, scale: int, trains: nn.Module | None = None
    ) -> None:
        """Record the gradient of the current shard, or that it is to be computed.

        Raises:
            JobError: `trains` is given; else as `Stepper.backward`.
        """
        if trains is not None:
            raise JobError(f"with {self._job.parallel.words}, there is one model; remove trains")
        if self._own.is_last:
            self._pass.backward(loss, weight, scale, None)
        else:
            self._pass.accept(loss, weight).scale = scale

    def log(self, values: Mapping[str, Any]) -> None:
        """Implements `Stepper.log`."""
        self._pass.log(values)

    def end_shard(self) -> None:
        """Complete the shard, or the oldest one under way; see `Stepper.end_shard`."""
        calls = self._stage.end_shard()
        shard = self._pass.end()
        assert shard is not None, "a shard of a step that was restarted"
        shard.calls = calls
        self._sums.take_buffers(shard, self.buffers)
        self._under_way.append(shard)
        while len(self._under_way) >= self._own.number - self._own.index:
            self._finish(self._under_way.popleft())

    def skip_shard(self, work: Work) -> None:
        """Implements `Stepper.skip_shard`."""
        self._sums.skip(work.item.leaf)

    def abandon(self) -> None:
        """Implements `Stepper.abandon`."""
        self._pass.abandon()
        self.restart()

    def commit(self, step: int, vote: CommitVote, scale: int) -> StepCommitted:
        """Implements `Stepper.commit`."""
        while self._under_way:
            self._finish(self._under_way.popleft())
        self._stage.finish()
        self._status.enter(Phase.REDUCE)
        mean = self._sums.mean(step)
        reduced = self._publish(step, mean, vote)
        check_user_states(self._group, reduced)
        norm = self._norm.total(step)
        if not is_finite(norm) and self._job.non_finite == "stop" and scale == 1:
            raise not_finite(step, self._norm.by_parameter())
        most = self._job.clip_norm
        if most is not None and most < norm < math.inf:
            present = [each for each in mean.gradients if each is not None]
            multiply(present, most / (norm + 1e-6))
        self._status.enter(Phase.OPTIMIZER)
        self._intact.begin_change(self._group.rank)
        was_whole = not (self._replica.uninitialized or self._replica.uninitialized_elsewhere)
        if is_finite(norm):
            self._update(mean)
        if not was_whole:
            self._share_uninitialized(step)
        self.restart()
        return commit_step(self._status, step, reduced, norm)

    def complete(self, step: int) -> StepCommitted:
        """Never called: after a failure, all workers are started again."""
        raise AssertionError(f"step {step + 1} cannot be completed in a pipeline")

    def _finish(self, shard: _StageShard) -> None:
        """Compute the gradient of a shard, once the stages after this one have, and send on what
        those before it need.
        """
        gradients: Gradients = []
        weight = shard.weight
        if not self._own.is_last:
            below = self._stage.downstream(shard.calls)
            if below.weight != weight:
                raise JobError(
                    f"a shard weighs {weight} on one worker and {below.weight} on another; with "
                    f"{self._job.parallel.words}, a weight must not depend on the model's output"
                )
            if weight:
                run = functools.partial(torch.autograd.backward, below.roots, below.gradients)
                gradients = self._pass.compute(
                    shard, run if below.roots else lambda: None, shard.scale
                )
                self._collect(shard, gradients, torch.zeros(()))
        self._stage.send_upstream(weight, shard.calls)
        if not self._own.is_last:
            self._pass.forget_gradients()
        self._sums.complete(shard)

    def _collect(self, shard: _StageShard, gradients: Gradients, loss: torch.Tensor) -> None:
        assert shard.weight is not None, "gradients without a weight"
        self._sums.sets[shard.number].begin(gradients, shard.weight, loss)

    def _publish(self, step: int, mean: GradientSet, vote: CommitVote) -> Reduced:
        """Show the others the part of this stage in a step; returns the parts of all.

        Raises:
            Aborted: The generation is over.
        """
        self._norm.publish(mean.gradients)
        self._times[self._group.rank] = torch.tensor(vote.times)
        if self._own.is_last:
            self._root.stats.copy_(mean.rest.stats)
            write_names(self._root.names, mean.names)
        votes = self._group.barrier(ReduceTag.PARTIALS, step, vote.value)
        # All have written: from here on what is shared is read-only, until all have passed the
        # barrier of the norm.
        means = self._root.stats.tolist()
        names = read_names(self._root.names)
        return Reduced(
            weight=mean.weight,
            loss=means[LOSS],
            logged=dict(zip(names, means[LOGGED:], strict=False)),
            used=mean.rest.used,
            kept=mean.rest.kept,
            norm=math.nan,
            votes=votes,
            replica_digests=(0,) * len(votes),
            step_times=tuple(StepTimes(*each) for each in self._times.tolist()),
        )

    def _update(self, mean: GradientSet) -> None:
        """Step the optimizers and commit the buffers."""
        # No gradient where no shard used the parameter, so that the optimizer leaves it alone.
        for parameter, gradient in zip(self._pass.parameters, mean.gradients, strict=True):
            parameter.grad = gradient
        if self.on_gradients is not None:
            self.on_gradients()
        self._replica.step_optimizers()
        self._pass.forget_gradients()
        self._replica.capture_optimizers()  # it may keep a gradient that it has written to
        self.buffers.take(mean.rest, mean.rest.used, mean.rest.kept)

    def _share_uninitialized(self, step: int) -> None:
        """Learn which state of the optimizers does not exist yet on the other stages.

        Raises:
            Aborted: The generation is over.
        """
        self._replica.state_tensors()
        payload = json.dumps(self._replica.uninitialized).encode()
        names = map(json.loads, self._group.gather(WorkerTag.COMMIT, step, payload))
        every = {name for each in names for name in each}
        self._replica.uninitialized_elsewhere = sorted(
            every.difference(self._replica.uninitialized)
        )


class StageNorm:
    """The norm of a gradient of which each stage has a part, as one stage computes it.

    It has the bits of the norm in one process, since it is made of the same pieces: on CPUs of
    blocks in a slot that the workers share, on GPUs of one norm a parameter. See `gradient_norm`.

    Args:
        group: The stages.
        memory: Memory that they share; its root slot has a place for the gradient of all.
        own: The parameters of this stage, by name.
        device: Device of the gradients.
    """

    def __init__(
        self, group: Group, memory: ReductionMemory, own: Sequence[str], device: torch.device
    ) -> None:
        self._group = group
        self._layout = memory.layout
        self._root = memory.root
        self._squares = memory.norms
        self._device = device
        self._own = own
        every = dict(zip(self._layout.parameter_names, self._root.gradients, strict=True))
        self._places = [every[name] for name in own]
        self._norms: dict[str, float] = {}

    def publish(self, gradients: Gradients) -> None:
        """Show the others the mean gradient of this stage, by parameter."""
        if self._device.type != "cpu":
            self._norms = dict(zip(self._own, norm_of_norms(gradients)[1](), strict=True))
            return
        for target, gradient in zip(self._places, gradients, strict=True):
            if gradient is None:
                target.zero_()
            else:
                target.copy_(gradient)

    def total(self, step: int) -> float:
        """The norm of the whole gradient, once all have published theirs and met.

        Raises:
            Aborted: The generation is over.
        """
        if self._device.type != "cpu":
            payload = json.dumps(self._norms).encode()
            for each in self._group.gather(WorkerTag.NORM, step, payload):
                self._norms |= json.loads(each)
            every = [self._norms[name] for name in self._layout.parameter_names]
            values = torch.tensor(every, dtype=torch.float64, device=self._device)
            return float(torch.linalg.vector_norm(values))
        blocks = self._root.blocks
        # By an even share of the blocks, for stages may have unequal numbers of parameters.
        for index in share(len(blocks), self._group.member_index, len(self._group.members)):
            is_gradient = index < self._layout.num_gradient_blocks
            self._squares[index] = square(blocks[index]) if is_gradient else 0.0
        self._group.barrier(ReduceTag.REDUCED, step)
        return math.sqrt(float(self._squares.sum()))

    def by_parameter(self) -> dict[str, float]:
        """The norm of each parameter of all stages."""
        if self._device.type != "cpu":
            return self._norms
        pairs = zip(self._layout.parameter_names, self._root.gradients, strict=True)
        return {name: norm_of(gradient) for name, gradient in pairs}
