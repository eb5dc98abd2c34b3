"""A step with stock DistributedDataParallel: the alternative to the tree, and its yardstick.

PyTorch averages the gradients over the workers while it computes them (Li et al., "PyTorch
Distributed", VLDB 2020). Here each loss is scaled beforehand, so that the average is the mean over
samples where workers have unequal numbers of them. All that a step has to say beside its gradient,
buffers included, goes the same way as in `worker.step.tree`, through slots that hold no gradient.

A collective of gloo cannot be woken. When a worker is lost, the agent ends the others too, and all
begin anew from the newest checkpoint.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from holdfast.arena.memory import Phase, Word, float_of, word_of
from holdfast.arena.replica import Replica
from holdfast.collectives.exact import TreeReducer
from holdfast.collectives.slot import LOSS, WEIGHT
from holdfast.core import tree
from holdfast.data.dataset import Dataset, generator_for, seed_everything
from holdfast.data.loading.loader import Loaded
from holdfast.data.loading.order import SampleOrder
from holdfast.errors import JobError
from holdfast.worker.barriers import WorkerTag
from holdfast.worker.cascade import await_abort, is_connection_error
from holdfast.worker.checks.replica_checker import ReplicaChecker
from holdfast.worker.context import WorkerContext
from holdfast.worker.rendezvous import meet
from holdfast.worker.sections import Sections
from holdfast.worker.step.buffers import Buffers
from holdfast.worker.step.committed import Committed, CommitVote, check_user_states, commit_step
from holdfast.worker.step.current_shard import check_logged_count, check_loss
from holdfast.worker.step.finite import is_finite, not_finite


class DdpModel(nn.Module):
    """A model that user code can hold before DistributedDataParallel can wrap it.

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
    """Computes steps on one worker; the workers' batches are its leaves.

    Args:
        replica: What is trained.
        model: What user code calls.
        sections: The shared memory; its slots hold no gradient.
        comparison: Of the replica with those of others.
        context: Of this worker.

    Raises:
        JobError: The port is taken.
    """

    def __init__(
        self,
        replica: Replica,
        model: DdpModel,
        sections: Sections,
        comparison: ReplicaChecker,
        context: WorkerContext,
    ) -> None:
        group = context.group
        self._replica, self._comparison, self._group = replica, comparison, group
        self._status = context.status
        self._clip_norm, self._non_finite = context.job.clip_norm, context.job.non_finite
        device = replica.flat.device
        own_gpus = device.type == "cuda" and torch.cuda.device_count() >= len(group.members)
        dist.init_process_group(
            "nccl" if own_gpus else "gloo",
            store=meet(group, context.job.port),
            rank=group.rank,
            world_size=len(group.members),
        )
        model.wrap(
            DistributedDataParallel(
                replica.model,
                device_ids=[device.index] if device.type == "cuda" else None,
                broadcast_buffers=False,  # they are averaged at the end of the step
            )
        )
        self._buffers = Buffers(replica, sections.slot_layout)
        self._buffers.begin()
        self._reducer = TreeReducer(
            group,
            tables=sections.tables,
            norms=sections.norms,
            slots=sections.slot,
            root=sections.root,
            layout=sections.slot_layout,
            num_leaves=len(group.members),
        )
        self._slot, self._root = sections.slot(group.rank, 0), sections.root
        self._weight: float | None = None
        self._done = False
        self._logged: dict[str, float] = {}

    def begin_shard(self, leaf: int, seed: int, *, again: bool) -> None:
        """Get ready for this worker's batch; random numbers start from `seed`."""
        assert not again, "batches are not verified"
        assert leaf == self._group.rank, "a worker's batch is its own leaf"
        self._slot.stats.zero_()
        self._weight, self._logged = None, {}
        seed_everything(seed)

    def backward(self, loss: torch.Tensor, weight: float) -> None:
        """Compute this worker's gradient and average it with the others'.

        Args:
            loss: The mean over the batch, a scalar.
            weight: What the batch counts for; see `Stepper.backward`.

        Raises:
            Aborted: Another worker was lost.
            JobError: The loss is no scalar, or the weights do not add up to more than 0.
        """
        check_loss(loss)
        if self._weight is not None:
            raise JobError("with sync=ddp, session.backward can be called once for a batch")
        self._weight = weight
        self._slot.stats[WEIGHT] = weight
        self._slot.stats[LOSS] = weight * loss.detach().double()
        step = self._status[Word.COMMITTED]
        brought = self._group.barrier(WorkerTag.WEIGHTS, step, word_of(weight))
        total = sum(map(float_of, brought))
        if not (math.isfinite(total) and total > 0):
            raise JobError(f"the batches of a step weigh {total} in all; it must be above 0")
        try:
            (loss * (weight * len(self._group.members) / total)).backward()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            if is_connection_error(error):
                await_abort(self._group)
            raise

    def has(self, leaf: int) -> bool:
        """Whether this worker has computed its batch of the step in hand."""
        assert leaf == self._group.rank, "a worker's batch is its own leaf"
        return self._done

    def commit_buffers(self) -> None:
        """As `Stepper.commit_buffers`."""
        self._buffers.commit()

    def committed_buffers(self) -> AbstractContextManager[None]:
        """As `Stepper.committed_buffers`."""
        return self._buffers.committed()

    def release_buffers(self) -> None:
        """As `Stepper.release_buffers`."""
        self._buffers.release()

    def log(self, values: dict[str, float]) -> None:
        """Add values to what the batch logs.

        Raises:
            JobError: There are more than fit.
        """
        self._logged |= values
        check_logged_count(self._logged)

    def end_shard(self) -> None:
        """Write down what the batch says.

        Raises:
            JobError: `backward` was not called for it.
        """
        if self._weight is None:
            raise JobError(
                "with sync=ddp, every worker must call session.backward for every batch: "
                "give a batch that is to be skipped the weight 0"
            )
        self._done = True
        changed = self._buffers.write_to(self._slot, self._weight)
        self._slot.used.copy_(torch.tensor(changed, dtype=torch.uint8))
        self._slot.write_logged(self._logged, self._weight)

    def abandon(self) -> None:
        """As `Stepper.abandon`."""
        self._buffers.begin()
        self._replica.optimizer.zero_grad()

    def commit(self, step: int, brought: CommitVote) -> Committed:
        """Check, clip, update and commit; as `Stepper.commit`."""
        self._status.enter(Phase.REDUCE)
        table = [tree.ABSENT] * tree.num_nodes(len(self._group.members))
        table[tree.leaf(self._group.rank, len(self._group.members))] = 0
        reduced = self._reducer.reduce(table, step, brought.value, brought.replica)
        check_user_states(self._group, reduced)
        self._comparison.check(step, reduced.digests)
        norm = self._checked_norm(step)
        self._status.enter(Phase.UPDATE)
        if is_finite(norm):
            self._replica.step_optimizer()
            self._replica.capture_optimizer()
            self._buffers.take(self._root, reduced.used.tolist(), reduced.kept)
        self._buffers.begin()
        self._replica.optimizer.zero_grad()
        self._done = False
        return commit_step(self._status, step, reduced, norm)

    def _checked_norm(self, step: int) -> float:
        gradients = {
            name: parameter.grad
            for name, parameter in self._replica.parameters.items()
            if parameter.grad is not None
        }
        length = nn.utils.get_total_norm(gradients.values())
        if not is_finite(float(length)):
            self._comparison.check_all(step)  # a wrong weight is a cause of that, too
            if self._non_finite != "skip":
                raise not_finite(step, gradients)
        elif self._clip_norm is not None:
            nn.utils.clip_grads_with_norm_(
                self._replica.parameters.values(), self._clip_norm, length
            )
        return float(length)


def borrowed(samples: Dataset, order: SampleOrder, step: int) -> Loaded:
    """What a worker without samples computes, because all must take part: samples of others, which
    count nothing. Two, because batch normalisation can make nothing of one.
    """
    indices = order.indices(step, range(order.num_shards))[:2]
    return Loaded(samples.batch(indices, generator_for("borrowed", step)), 0)
