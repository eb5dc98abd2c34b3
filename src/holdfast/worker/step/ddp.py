"""A step with PyTorch's DistributedDataParallel: the alternative to the tree.

PyTorch averages the gradients over the workers while it computes them (Li et al., "PyTorch
Distributed", VLDB 2020). Here each loss is scaled beforehand, so that the average is the mean over
samples even if workers have unequal numbers of them. All else, such as losses and buffers, is
reduced as in `worker.step.tree`, through slots that hold no gradient.

A collective of gloo cannot be aborted. When a worker is lost, the agent ends the others too, and
all are restarted from the newest checkpoint.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from holdfast.arena.memory import Phase, Word, float_of, word_of
from holdfast.collectives.barrier_tags import WorkerTag
from holdfast.collectives.exact import TreeReducer
from holdfast.collectives.slot import LOSS, WEIGHT
from holdfast.core.step import tree
from holdfast.core.step.plan import Plan, WorkItem
from holdfast.data.dataset import seed_everything
from holdfast.errors import JobError
from holdfast.worker.process_groups import collectives
from holdfast.worker.step.buffers import Buffers
from holdfast.worker.step.commit import (
    CommitVote,
    StepCommitted,
    check_user_states,
    commit_step,
)
from holdfast.worker.step.compression_hook import compression_hook
from holdfast.worker.step.gradient_norm import is_finite, norm_of, not_finite
from holdfast.worker.step.shard_gradients import ShardGradients
from holdfast.worker.step.shard_work import (
    LossLeaves,
    add_logged,
    check_loss,
    unscaled_gradients,
)
from holdfast.worker.step.stepper import StepContext, Work


class DdpModel(nn.Module):
    """A model that user code holds before DistributedDataParallel wraps it.

    Args:
        module: The model.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self._wrappers: list[DistributedDataParallel] = []  # a list, so that it is no submodule

    def wrap(self, wrapper: DistributedDataParallel) -> None:
        """Call the model through `wrapper` from now on."""
        self._wrappers.append(wrapper)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        model = self._wrappers[-1] if self._wrappers else self.module
        return model(*args, **kwargs)


class DdpStepper:
    """Computes steps on one worker, whose batch is one leaf; see `worker.step.stepper`.

    Args:
        model: Model that user code calls.
        context: Its slots hold no gradients.

    Raises:
        JobError: The port is in use.
    """

    def __init__(self, model: DdpModel, context: StepContext) -> None:
        self._replica = replica = context.replica
        self._replicas = context.replicas
        worker = context.worker
        self._job = worker.job
        self._group = worker.group
        self._status = worker.status
        job = self._job
        group = self._group
        sections = context.sections
        self._is_balanced = job.balance != "even"
        self._clip_norm = job.clip_norm
        self._non_finite = job.non_finite
        self.work_items: Sequence[WorkItem] = ()
        self.needs_every_worker = True
        self.sends_whole = False
        device = replica.flat.device
        collectives.join(worker, device)
        self._ddp = keys = job.ddp
        wrapper = DistributedDataParallel(
            replica.model,
            device_ids=[device.index] if device.type == "cuda" else None,
            broadcast_buffers=False,  # they are averaged at the end of the step
            init_sync=not replica.bases,  # it would write to frozen weights
            find_unused_parameters=keys.find_unused_parameters,
            bucket_cap_mb=keys.bucket_cap_mb,
            gradient_as_bucket_view=keys.gradient_as_bucket_view,
            static_graph=keys.static_graph,
        )
        trained = [each for each in replica.model.parameters() if each.requires_grad]
        self._hook = hook = compression_hook(
            job.compression, trained, keys.bucket_cap_mb, self._status
        )
        if hook is not None:  # a lambda, as PyTorch refuses annotations that are text
            wrapper.register_comm_hook(None, lambda _, bucket: hook.reduce(bucket))
        model.wrap(wrapper)
        self._unused: set[str] | None = None if keys.static_graph else set()
        self.buffers = Buffers(replica, sections.slot_layout)
        self.buffers.begin()
        begin_reduce = functools.partial(self._status.enter, Phase.REDUCE)
        self._reducer = TreeReducer(group, sections.reduction, len(group.members), begin_reduce)
        self._slot = sections.slot(group.rank, 0)
        self._root = sections.root
        self._intact = sections.intact
        self._weight: float | None = None
        self._done = False
        self._logged: dict[str, Any] = {}
        self._parameters = list(replica.parameters.values())
        self._gradients: list[torch.Tensor | None] = []
        self._shown = ShardGradients(replica.parameters, replica.optimizers)
        self._leaves = LossLeaves(replica)
        self.on_gradients: Callable[[], object] | None = None

    def assign(self, step: int, plan: Plan) -> None:  # noqa: ARG002  # the protocol's
        """Implements `Stepper.assign`."""
        # The first is its batch. The rest account for workers that the group does not have.
        self.work_items = self._job.work_items(plan, self._group.member_index)[:1]
        assert [item.leaf for item in self.work_items] == [self._group.rank], "one batch a worker"

    def resume(self, step: int) -> None:
        """Nothing remains of a step: after a failure, all workers are started again."""

    def restart(self) -> None:
        """Implements `Stepper.restart`."""
        self.buffers.begin()
        self._shown.forget()
        self._gradients = []
        self._done = False

    abandon = restart

    def next_work(self) -> Work | None:
        """Implements `Stepper.next_work`."""
        return None if self._done else Work(self.work_items[0], is_check=False)

    def begin_shard(self, work: Work, seed: int) -> None:  # noqa: ARG002  # there is one batch
        """Implements `Stepper.begin_shard`."""
        self._slot.stats.zero_()
        self._weight = None
        self._logged = {}
        seed_everything(seed)

    def backward(
        self, loss: torch.Tensor, weight: float, scale: int, trains: nn.Module | None = None
    ) -> None:
        """Compute this worker's gradient and average it with the others'; see `Stepper.backward`.

        Raises:
            JobError: The weights do not add up to more than 0, or `trains` is given; else as there.
        """
        if trains is not None:
            raise JobError("with sync=ddp, there is one model; remove trains")
        check_loss(loss)
        if self._weight is not None:
            raise JobError("with sync=ddp, session.backward can be called once for a batch")
        step = self._status[Word.COMMITTED]
        self._shown.check_none()
        self._leaves.check(loss, step)
        self._weight = weight
        self._slot.stats[WEIGHT] = weight
        if weight:
            self._slot.stats[LOSS] = weight * loss.detach().double()
        # DDP divides by the number of workers, so the factor must know the weights of all
        # beforehand.
        weights = self._group.barrier(WorkerTag.WEIGHTS, step, word_of(weight))
        total = sum(map(float_of, weights))
        if not (math.isfinite(total) and total > 0):
            raise JobError(f"the batches of a step weigh {total} in all; it must be above 0")
        factor = scale * weight * len(self._group.members) / total
        before = self._status.enter(Phase.BACKWARD)
        scaled = loss * factor
        # 0 x NaN is not 0, and the others wait for a gradient of every parameter. DDP follows the
        # graph from the model's outputs to know which are used: then the zero must pass there.
        follows_graph = self._ddp.static_graph or self._ddp.find_unused_parameters
        if not weight and not follows_graph:
            trained = (p for p in self._parameters if p.requires_grad)
            scaled = torch.stack([(p * 0).sum().real.to(loss) for p in trained]).sum()
        self.sends_whole = self._hook is None or self._hook.begin(scale, is_whole=self.sends_whole)
        scaled.register_hook(self._on_backward)  # type: ignore[no-untyped-call]
        with collectives.aborts_explained(self._group):
            scaled.backward()  # type: ignore[no-untyped-call]
        self._check_unused(step)
        self._gradients = unscaled_gradients(self._parameters, scale)
        self._shown.show(self._gradients)
        self._status.enter(before)

    def log(self, values: Mapping[str, Any]) -> None:
        """Implements `Stepper.log`."""
        add_logged(self._logged, values)

    def end_shard(self) -> None:
        """Complete the batch; see `Stepper.end_shard`."""
        if self._weight is None:
            raise JobError(
                "with sync=ddp, every worker must call session.backward for every batch: "
                "to skip a batch, give it the weight 0"
            )
        if not self._gradients:
            raise JobError(
                "with sync=ddp, session.backward failed, and the other workers wait for the "
                "gradient of that batch; set sync=tree, where a batch can be skipped"
            )
        self._shown.end()
        self._done = True
        changed = self.buffers.write_to(self._slot, self._weight)
        self._slot.used.copy_(changed)
        self._slot.write_logged(self._logged, self._weight)

    def skip_shard(self, work: Work) -> None:
        """Never called, as every worker computes something in every step."""
        raise AssertionError(f"work item {work.item} has no samples")

    def commit(self, step: int, vote: CommitVote, scale: int) -> StepCommitted:
        """Implements `Stepper.commit`."""
        rank = self._group.rank
        # One leaf a worker, in its first slot: all but the gradient is summed as with the tree.
        table = [tree.ABSENT] * tree.num_nodes(len(self._group.members))
        table[tree.leaf(rank, len(self._group.members))] = 0
        reduced = self._reducer.reduce(table, step, vote.value, vote.replica, vote.times)
        check_user_states(self._group, reduced)
        self._replicas.check(step, reduced.replica_digests)
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = gradient
        # The gradient is averaged already, the same on all workers, so each computes the same norm.
        norm = self._checked_norm(step, scale)
        self._status.enter(Phase.OPTIMIZER)
        self._intact.begin_change(rank)
        if self._hook is not None:
            self._hook.end(is_finite=is_finite(norm))
        if is_finite(norm):
            if self.on_gradients is not None:
                self.on_gradients()
            self._replica.step_optimizers()
            self._replica.capture_optimizers()
            self.buffers.take(self._root, reduced.used, reduced.kept)
        self.restart()
        return commit_step(self._status, step, reduced, norm)

    def _on_backward(self, _: torch.Tensor) -> None:
        """Have the wait for the others' gradients told from the computation of this worker's.

        Called before DDP sees a gradient, so autograd calls `_begin_wait` before the function in
        which DDP waits.
        """
        torch.autograd.Variable._execution_engine.queue_callback(self._begin_wait)

    def _begin_wait(self) -> None:
        device = self._replica.flat.device
        if self._is_balanced and device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # the host is through before the GPU
        self._status.enter(Phase.WAIT_REDUCE)

    def complete(self, step: int) -> StepCommitted:
        """Never called: after a failure, all workers are started again."""
        raise AssertionError(f"step {step + 1} cannot be completed with sync=ddp")

    def _check_unused(self, step: int) -> None:
        """Raises: JobError: A parameter has no gradient, so DDP has not reduced its bucket."""
        if self._ddp.find_unused_parameters:
            return
        parameters = self._replica.parameters.items()
        unused = [name for name, p in parameters if p.requires_grad and p.grad is None]
        if self._unused is None:  # a static graph is that of the first step
            self._unused = set(unused)
        if missing := [name for name in unused if name not in self._unused]:
            also = " and ddp.static_graph=false" if self._ddp.static_graph else ""
            raise JobError(
                f"the loss of step {step + 1} does not depend on {missing[0]}, whose gradient "
                f"DistributedDataParallel waits for; set ddp.find_unused_parameters=true{also}"
            )

    def _checked_norm(self, step: int, scale: int) -> float:
        gradients = {
            name: parameter.grad
            for name, parameter in self._replica.parameters.items()
            if parameter.grad is not None
        }
        norm = nn.utils.get_total_norm(gradients.values())
        norm.fill_(self._replicas.common_norm(step, float(norm)))
        if not is_finite(float(norm)):
            self._replicas.check_all(step)  # a wrong weight causes that, too
            if self._non_finite != "skip" and scale == 1:
                norms = {name: norm_of(each) for name, each in gradients.items()}
                raise not_finite(step, norms)
        elif self._clip_norm is not None:
            nn.utils.clip_grads_with_norm_(self._replica.parameters.values(), self._clip_norm, norm)
        return float(norm)
