"""Gradient sets: partial sums that stay where autograd has made them, until the step is reduced.

    shard   ─▶ the tensors that autograd has made, by reference; of two that share memory, one is
               copied
    sibling ─▶ added to the left one in place, along the tree; the right one is freed

What is small, such as averaged buffers and losses, is in a slot that has no gradients. Nothing here
waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from holdfast.arena.tensors import as_real, write_names
from holdfast.collectives.reduction import Reduced
from holdfast.collectives.slot import LOGGED, LOSS, WEIGHT, Slot, SlotLayout, check_names

Gradients = list[torch.Tensor | None]
"""Gradients by parameter; None where a parameter has none."""

_ADDRESS: Final = torch.Tensor.data_ptr
_OFFSET: Final = torch.Tensor.storage_offset


class GradientSet:
    """The sum of some shards.

    Args:
        layout: Layout of what is no gradient.
        device: Device that computes the shards.

    Attributes:
        gradients: Weight x gradient, by parameter.
        rest: Averaged and integer buffers, statistics, and which buffers changed.
        weight: Weight of the shards.
        names: Names of the logged values.
    """

    def __init__(self, layout: SlotLayout, device: torch.device) -> None:
        memory = torch.zeros(layout.layout.size_bytes, dtype=torch.uint8, device=device)
        self.rest = Slot(memory, layout)
        self.gradients: Gradients = []
        self.weight = 0.0
        self.names: tuple[str, ...] = ()

    def begin(self, gradients: Gradients, weight: float, loss: torch.Tensor) -> None:
        """Take the gradients of one shard, which already have its weight."""
        self.gradients = _in_own_memory(gradients)
        self.weight = weight
        self.rest.stats.zero_()
        self.rest.stats[LOSS] = weight * loss.detach().double()

    def write_logged(self, logged: Mapping[str, Any]) -> None:
        """Write what the shard has logged: numbers, or tensors of float64 with one element."""
        self.names = tuple(sorted(logged))
        for column, name in enumerate(self.names, start=LOGGED):
            mean = self.weight * logged[name]
            # An assignment of a number would wait for the device.
            if isinstance(mean, torch.Tensor):
                self.rest.stats[column].copy_(mean)
            else:
                self.rest.stats[column].fill_(mean)

    def add(self, other: GradientSet) -> None:
        """Add the sum of the sibling to the right, which is free afterwards.

        Raises:
            JobError: Its shards have logged other names.
        """
        check_names(are_equal=self.names == other.names)
        self.gradients = _added(self.gradients, other.gradients)
        self.weight += other.weight
        for mine, others in zip(self.rest.sums, other.rest.sums, strict=True):
            mine.add_(others)
        self.rest.stats.add_(other.rest.stats)
        self.rest.used.logical_or_(other.rest.used)
        other.gradients = []

    def divide(self, weight: float) -> None:
        """Divide gradients and averaged buffers by the weight of all shards."""
        present = [gradient for gradient in self.gradients if gradient is not None]
        multiply(present, 1 / weight)
        for each in self.rest.sums:
            each.mul_(1 / weight)

    def to_mean(self) -> GradientSet:
        """The mean of all shards, whose sum this is; it is used up."""
        # By a tensor: a GPU multiplies by the rounded inverse of a number.
        stats = self.rest.stats
        stats.div_(torch.full_like(stats, self.weight))
        # Where weights add up to 1, except for rounding, the sum is the mean.
        if not math.isclose(self.weight, 1, rel_tol=1e-12):
            self.divide(self.weight)
        return self

    def write_sums(self, slot: Slot) -> None:
        """Write gradients and averaged buffers to a slot."""
        slot.write_gradients(self.gradients)
        slot.averages.copy_(self.rest.averages, non_blocking=True)

    def write_rest(self, slot: Slot) -> None:
        """Write all else to a slot of the arena; waits for the device.

        Raises:
            JobError: The names of logged values are too long.
        """
        slot.stats.copy_(self.rest.stats)
        slot.stats[WEIGHT] = self.weight
        slot.write_used([*(each is not None for each in self.gradients), *self.rest.used.tolist()])
        write_names(slot.names, self.names)
        for theirs, mine in zip(slot.kept, self.rest.kept, strict=True):
            theirs.copy_(mine)

    def take(self, reduced: Reduced, root: Slot) -> None:
        """Become the mean of all shards: gradients are those of the root, until it changes."""
        used = reduced.used.tolist()
        pairs = zip(root.gradients, used, strict=False)  # flags of buffers follow
        # No gradient where no shard used the parameter, so that the optimizer leaves it alone.
        self.gradients = [gradient if was_used else None for gradient, was_used in pairs]
        self.rest.averages.copy_(root.averages)
        self.rest.used.copy_(reduced.used[len(root.gradients) :])
        for mine, theirs in zip(self.rest.kept, reduced.kept, strict=True):
            mine.copy_(theirs)
        self.names = tuple(reduced.logged)
        self.weight = 1.0
        means = [0.0] * len(self.rest.stats)
        means[LOSS] = reduced.loss
        means[LOGGED : LOGGED + len(self.names)] = reduced.logged.values()
        self.rest.stats.copy_(torch.tensor(means, dtype=torch.float64))


def _in_own_memory(gradients: Gradients) -> Gradients:
    """Gradients of which no two share memory, as those of the parameters in `a.t() + b.t()` do."""
    present = [each for each in gradients if each is not None]
    # The usual case, in which no storage is looked at: each is at the start of its own.
    if not any(map(_OFFSET, present)) and len({*map(_ADDRESS, present)}) == len(present):
        return gradients
    taken = set[int]()
    separate: Gradients = []
    for gradient in gradients:
        address = 0 if gradient is None else gradient.untyped_storage().data_ptr()
        separate.append(gradient.clone() if gradient is not None and address in taken else gradient)
        if address:  # an empty one has none
            taken.add(address)
    return separate


def multiply(tensors: Sequence[torch.Tensor], factor: float) -> None:
    """Multiply tensors by a number, in place, with the bits of `Tensor.mul_`."""
    real = [as_real(each) for each in tensors]
    wide = [each for each in real if each.element_size() > 2]
    if wide:
        torch._foreach_mul_(wide, factor)
    # PyTorch rounds the factor to 16 bits first where it multiplies such tensors together.
    for each in real:
        if each.element_size() <= 2:
            each.mul_(factor)


def _added(left: Gradients, right: Gradients) -> Gradients:
    """The sum of two lists of gradients; the tensors of the first one that has each take it."""
    pairs = list(zip(left, right, strict=True))
    mine = [each for each, other in pairs if each is not None and other is not None]
    if mine:
        torch._foreach_add_(
            mine, [each for other, each in pairs if each is not None and other is not None]
        )
    if len(mine) == len(pairs):
        return left
    sums = [other if mine is None else mine for mine, other in pairs]
    alone = [
        each
        for each, (mine, other) in zip(sums, pairs, strict=True)
        if each is not None and (mine is None or other is None)
    ]
    # What a shard lacks is a zero, and -0.0 + 0.0 is 0.0.
    if alone:
        torch._foreach_add_([as_real(each) for each in alone], 0.0)
    return sums
