"""Backward pass: the gradient of one shard's loss, and what user code may do with it.

    loss ─▶ checks ─▶ autograd: weight x scale x gradient ─▶ / scale ─▶ gradients by parameter
                                                                     ├▶ collected by the stepper
                                                                     └▶ shown until the shard ends

It is the same wherever gradients are summed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn

from holdfast.arena.memory import Phase, Word
from holdfast.arena.replica import Replica
from holdfast.errors import JobError
from holdfast.worker.context import WorkerContext
from holdfast.worker.devices import WeightCasts
from holdfast.worker.step.shard_gradients import ShardGradients
from holdfast.worker.step.shard_work import (
    CurrentShard,
    Gradients,
    LossLeaves,
    check_loss,
    unscaled_gradients,
)


class BackwardPass:
    """Runs the backward passes of one worker.

    Args:
        trained: The parameters that get a gradient, by name.
        replica: State that is trained.
        worker: Publishes the phase; may inject faults.

    Attributes:
        parameters: The parameters, in the order of gradients.
        casts: What autocast has cast.
    """

    def __init__(
        self, trained: Mapping[str, nn.Parameter], replica: Replica, worker: WorkerContext
    ) -> None:
        self.parameters = list(trained.values())
        self._shown = ShardGradients(trained, replica.optimizers)
        self._leaves = LossLeaves(replica)
        self._status = worker.status
        self._failpoints = worker.failpoints
        self.casts = WeightCasts(worker.job.precision)

    def run(
        self,
        shard: CurrentShard,
        loss: torch.Tensor,
        scale: int,
        weight: float,
        trains: nn.Module | None,
        collect: Callable[[Gradients], None],
    ) -> None:
        """Compute weight x gradient of a shard; as `Stepper.backward`.

        Args:
            shard: The shard; it takes the weight.
            loss, scale, weight, trains: As `Stepper.backward`.
            collect: Takes the gradients, unless there are none or the shard was discarded.
        """
        if shard.weight is not None:
            raise JobError(
                "session.backward was called twice for one shard; add the losses and call it once"
            )
        check_loss(loss)
        self._shown.check_none()
        self._leaves.check(loss, self._status[Word.COMMITTED])
        # A second call is refused from here on, unless this one fails.
        shard.weight = weight
        if not weight:  # the loss may be NaN, and 0 x NaN is not 0
            zeros = [p.detach().new_zeros(()).expand(p.shape) for p in self.parameters]
            self._shown.show(zeros)
            return
        inputs = None if trains is None else [p for p in trains.parameters() if p.requires_grad]
        before = self._status.enter(Phase.BACKWARD)
        factor = weight * scale
        # Autograd gives weight x scale x gradient: no pass over the gradient applies the weight.
        try:
            torch.autograd.backward(loss if factor == 1 else loss * factor, inputs=inputs)
        except Exception:
            # User code may catch it: the part that autograd has computed never counts.
            shard.weight = None
            self._shown.forget()
            self._status.enter(before)
            raise
        self._status.enter(Phase.COLLECT)
        self._failpoints.at_gradient(self.parameters)
        gradients = unscaled_gradients(self.parameters, scale)
        shard.fired = [gradient is not None for gradient in gradients]
        if not shard.discarded:
            collect(gradients)
        self._shown.show(gradients)
        self._status.enter(before)

    def end(self, shard: CurrentShard) -> None:
        """Forget what is shown of a shard, and weight casts that may lack their gradient.

        Raises:
            JobError: User code has changed it, or a gradient is not from `session.backward`.
        """
        if not self._all_fired(shard):
            self.casts.forget()
        if shard.discarded:
            self._shown.forget()
        elif shard.weight is None:
            self._shown.check_none()
        else:
            self._shown.end()

    def forget(self) -> None:
        """Leave no gradient in any parameter."""
        self._shown.forget()

    def _all_fired(self, shard: CurrentShard) -> bool:
        """True if every parameter that is trained has a gradient of this shard."""
        if not shard.fired:  # no gradient was computed
            return False
        return all(shard.fired) or all(
            fired or not parameter.requires_grad
            for parameter, fired in zip(self.parameters, shard.fired, strict=True)
        )
