"""Loss leaves: the tensors that a loss depends on and that require a gradient.

Only parameters of attached models are trained alike on all workers. Another one that user code
trains would get the gradient of one worker's shards alone.
"""

from __future__ import annotations

import gc
import weakref
from typing import Final

import torch
from torch import nn
from torch.optim import Optimizer

from holdfast.arena.replica import Replica
from holdfast.errors import JobError

_INTERVAL: Final = 16
"""Steps from one check to the next, apart from the first two: a check visits each node of the graph
of a loss, at a microsecond a node."""


class LossLeaves:
    """Checks what the losses of one worker depend on.

    Args:
        replica: Has the parameters that may be trained.
    """

    def __init__(self, replica: Replica) -> None:
        self._harmless = {id(each) for each in replica.model.parameters()}
        self._registered = {id(each) for each in replica.kept_parameters.values()}
        self._inputs: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        self._checks = 0
        self._step = -1

    def check(self, loss: torch.Tensor, step: int) -> None:
        """Check the loss of a shard, if it is due in this step.

        Raises:
            JobError: It depends on a tensor that is trained and not part of a model.
        """
        self._checks += step != self._step
        self._step = step
        if self._checks > 2 and step % _INTERVAL:
            return
        self._inputs = {i: each for i, each in self._inputs.items() if each[0]() is not None}
        for leaf in _leaves_of(loss):
            if id(leaf) not in self._harmless and self._is_trained(leaf):
                raise JobError(
                    f"the loss depends on a tensor of shape {tuple(leaf.shape)} that requires a "
                    "gradient and that no model has; make it a parameter of the model given to "
                    "session.attach, or freeze it with requires_grad_(False) if it is not trained"
                )

    def _is_trained(self, leaf: torch.Tensor) -> bool:
        """True if a leaf is not only an input, such as one whose gradient a penalty needs."""
        if id(leaf) in self._registered:  # such as an average that is not called under `no_grad`
            self._harmless |= self._registered - _held_by_optimizers()
            return id(leaf) not in self._harmless
        # An input does not outlive its step.
        before, step = self._inputs.setdefault(id(leaf), (weakref.ref(leaf), self._step))
        if before() is not leaf:  # it had the same address
            self._inputs[id(leaf)] = (weakref.ref(leaf), self._step)
        return isinstance(leaf, nn.Parameter) or (before() is leaf and step != self._step)


def _leaves_of(loss: torch.Tensor) -> list[torch.Tensor]:
    nodes = [loss.grad_fn]
    seen = set(nodes)
    leaves = []
    for node in nodes:  # it grows
        if isinstance(node, torch._C._functions.AccumulateGrad):  # type: ignore[attr-defined]
            leaves.append(node.variable)
        for each, _ in () if node is None else node.next_functions:
            if each not in seen:
                seen.add(each)
                nodes.append(each)
    return leaves


def _held_by_optimizers() -> set[int]:
    optimizers = (each for each in gc.get_objects() if issubclass(type(each), Optimizer))
    return {id(p) for o in optimizers for group in o.param_groups for p in group["params"]}
