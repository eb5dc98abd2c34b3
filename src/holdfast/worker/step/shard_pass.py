"""Shard pass: one shard after the other, from its start to the gradient of its loss.

    begin ─▶ buffers, random numbers ─▶ (user: forward, loss) ─▶ backward ─▶ end
                                                                    │
    loss ─▶ checks ─▶ autograd: weight x scale x gradient ─▶ / scale ├▶ collected by the stepper
                                                                    └▶ shown until the shard ends

It is the same wherever gradients are summed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from holdfast.arena.memory import Phase, Word
from holdfast.collectives.gradient_sets import Gradients
from holdfast.data.dataset import seed_everything
from holdfast.errors import JobError
from holdfast.worker.devices import WeightCasts
from holdfast.worker.step.buffers import Buffers
from holdfast.worker.step.shard_gradients import ShardGradients
from holdfast.worker.step.shard_work import (
    CurrentShard,
    LossLeaves,
    add_logged,
    check_loss,
    unscaled_gradients,
)
from holdfast.worker.step.stepper import StepContext

S = TypeVar("S", bound=CurrentShard)


class ShardPass(Generic[S]):
    """Computes the shards of one worker.

    Args:
        context: State that is trained, and the worker.
        buffers: The model's buffers.
        collect: Takes a shard, its gradients and its loss, unless the shard has none or was
            discarded.

    Attributes:
        parameters: The parameters, in the order of gradients.
        shard: The shard that was begun and has not ended.
    """

    def __init__(
        self,
        context: StepContext,
        buffers: Buffers,
        collect: Callable[[S, Gradients, torch.Tensor], None],
    ) -> None:
        worker = context.worker
        self.parameters = list(context.trained.values())
        self._buffers = buffers
        self._collect = collect
        self._shown = ShardGradients(context.trained, context.replica.optimizers)
        self._leaves = LossLeaves(context.replica)
        self._status = worker.status
        self._failpoints = worker.failpoints
        self._casts = WeightCasts(worker.job.precision)
        self.shard: S | None = None

    def begin_step(self) -> None:
        """Begin a step, perhaps again. A backward pass may be under way: its gradients are dropped
        when they come.
        """
        if self.shard is not None:
            self.shard.discarded = True
        self._casts.forget()
        self._buffers.begin()

    def begin(self, shard: S, seed: int) -> None:
        """Begin a shard, whose random numbers start from `seed`."""
        self._buffers.begin()
        self.shard = shard
        self._casts.keep()
        # Last, so that nothing above draws from the shard's random numbers.
        seed_everything(seed)

    def backward(
        self, loss: torch.Tensor, weight: float, scale: int, trains: nn.Module | None
    ) -> None:
        """Compute weight x gradient of the shard; as `Stepper.backward`."""
        shard = self.accept(loss, weight)
        if not weight:  # the loss may be NaN, and 0 x NaN is not 0
            zeros = [p.detach().new_zeros(()).expand(p.shape) for p in self.parameters]
            self._shown.show(zeros)
            return
        inputs = None if trains is None else [p for p in trains.parameters() if p.requires_grad]
        factor = weight * scale

        # Autograd gives weight x scale x gradient: no pass over the gradient applies the weight.
        def run() -> None:
            torch.autograd.backward(loss if factor == 1 else loss * factor, inputs=inputs)

        gradients = self.compute(shard, run, scale)
        if not shard.discarded:
            self._collect(shard, gradients, loss)
        self._shown.show(gradients)

    def accept(self, loss: torch.Tensor, weight: float) -> S:
        """Check the loss of the shard, and note its weight; returns the shard.

        Raises:
            JobError: The loss is not a scalar that depends on the model, or is the second one.
        """
        shard = self.shard
        assert shard is not None, "backward without a shard"
        if shard.weight is not None:
            raise JobError(
                "session.backward was called twice for one shard; add the losses and call it once"
            )
        check_loss(loss)
        self._shown.check_none()
        self._leaves.check(loss, self._status[Word.COMMITTED])
        # A second call is refused from here on, unless this one fails.
        shard.weight = weight
        return shard

    def compute(self, shard: S, run: Callable[[], None], scale: int) -> Gradients:
        """The gradients of a shard, which `run` has autograd compute."""
        before = self._status.enter(Phase.BACKWARD)
        try:
            run()
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
        self._status.enter(before)
        return gradients

    def log(self, values: Mapping[str, Any]) -> None:
        """Add values to what the shard logs; as `Stepper.log`."""
        assert self.shard is not None, "log without a shard"
        add_logged(self.shard.logged, values)

    def end(self) -> S | None:
        """End the shard: forget what is shown of it, and weight casts that may lack their gradient.

        Returns:
            The shard; None if it was discarded.

        Raises:
            JobError: User code has changed what is shown, or a gradient is not from
                `session.backward`.
        """
        shard = self.shard
        assert shard is not None, "no shard was begun"
        self.shard = None
        if not self._all_fired(shard):
            self._casts.forget()
        if shard.discarded:
            self._shown.forget()
            return None
        if shard.weight is None:
            self._shown.check_none()
        else:
            self._shown.end()
        return shard

    def abandon(self) -> None:
        """Forget the shard, if one was begun, and its gradients."""
        self.shard = None
        self.forget_gradients()

    def forget_gradients(self) -> None:
        """Leave no gradient in any parameter."""
        self._shown.forget()

    def _all_fired(self, shard: S) -> bool:
        """True if every parameter that is trained has a gradient of this shard."""
        if not shard.fired:  # no gradient was computed
            return False
        return all(shard.fired) or all(
            fired or not parameter.requires_grad
            for parameter, fired in zip(self.parameters, shard.fired, strict=True)
        )
