"""Stage norm: the norm of a gradient of which each stage of a pipeline has a part.

It has the bits of the norm in one process, since it is made of the same pieces: on CPUs of blocks
in a slot that the workers share, on GPUs of one norm a parameter. See `gradient_norm`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import torch

from holdfast.collectives.barrier_tags import ReduceTag, WorkerTag
from holdfast.collectives.gradient_sets import Gradients
from holdfast.collectives.group import Group
from holdfast.collectives.reduction import ReductionMemory, share
from holdfast.collectives.slot import square
from holdfast.worker.step.gradient_norm import norm_of, norm_of_norms


class StageNorm:
    """The norm as one stage computes it.

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
        for place, gradient in zip(self._places, gradients, strict=True):
            if gradient is None:
                place.zero_()
            else:
                place.copy_(gradient)

    def total(self, step: int) -> float:
        """The norm of the whole gradient, once all have published theirs and met.

        Raises:
            Aborted: The generation is over.
        """
        if self._device.type != "cpu":
            own = json.dumps(self._norms).encode()
            for each in self._group.gather(WorkerTag.NORM, step, own):
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
