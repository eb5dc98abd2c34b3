"""Backward pass: the gradient of one shard's loss, and what user code may do with it.

loss ─▶ checks ─▶ autograd: weight x scale x gradient ─▶ / scale ─▶ gradients by parameter
                                                                 └▶ shown until the shard ends
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from holdfast.arena.memory import Phase, Word
from holdfast.arena.replica import Replica
from holdfast.errors import JobError
from holdfast.worker.context import WorkerContext
from holdfast.worker.step.shard_gradients import ShardGradients
from holdfast.worker.step.shard_work import LossLeaves, check_loss, unscaled_gradients

Gradients = list[torch.Tensor | None]
"""Gradients by parameter; None where a parameter has none."""


class BackwardPass:
    """Runs the backward passes of one worker.

    Args:
        replica: State that is trained.
        worker: Publishes the phase; may inject faults.

    Attributes:
        names, parameters: The trained parameters, in the order of gradients.
        shown: What user code sees of the gradient in the loop.
    """

    def __init__(self, replica: Replica, names: Sequence[str], worker: WorkerContext) -> None:
        self.names = names
        self.parameters = [replica.parameters[name] for name in names]
        trained = dict(zip(names, self.parameters, strict=True))
        self.shown = ShardGradients(trained, replica.optimizers)
        self._leaves = LossLeaves(replica)
        self._status = worker.status
        self._failpoints = worker.failpoints

    def check(self, loss: torch.Tensor, weight: float | None) -> None:
        """Check that a shard can be given this loss.

        Args:
            loss: The mean over the shard.
            weight: The weight that the shard has already; None for none.

        Raises:
            JobError: It cannot.
        """
        if weight is not None:
            raise JobError(
                "session.backward was called twice for one shard; add the losses and call it once"
            )
        check_loss(loss)
        self.shown.check_none()
        self._leaves.check(loss, self._status[Word.COMMITTED])

    def show_zeros(self) -> None:
        """Show the gradient of a shard that weighs nothing."""
        self.shown.show([p.detach().new_zeros(()).expand(p.shape) for p in self.parameters])

    def run(
        self, loss: torch.Tensor, weight: float, scale: int, trains: nn.Module | None
    ) -> Gradients:
        """Compute weight x gradient; as `Stepper.backward`. The phase is COLLECT afterwards."""
        inputs = None if trains is None else [p for p in trains.parameters() if p.requires_grad]
        before = self._status.enter(Phase.BACKWARD)
        factor = weight * scale
        # Autograd applies the weight, so no pass over the gradient does.
        try:
            torch.autograd.backward(loss if factor == 1 else loss * factor, inputs=inputs)
        except Exception:
            # User code may catch it: the part that autograd has computed never counts.
            self.shown.forget()
            self._status.enter(before)
            raise
        self._status.enter(Phase.COLLECT)
        self._failpoints.at_gradient(self.parameters)
        return unscaled_gradients(self.parameters, scale)
