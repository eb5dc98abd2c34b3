"""A model's buffers (BatchNorm's statistics, say) through a step.

Every shard starts from the same ones. What it leaves in them goes to its slot beside the gradient:
floating-point buffers are averaged by weight, integer buffers are those of the first shard.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from holdfast.arena.replica import Replica
from holdfast.collectives.slot import Slot, SlotLayout


class Buffers:
    """The buffers of one worker's replica.

    Args:
        replica: Holds them.
        layout: Says which are averaged and which are kept.
    """

    def __init__(self, replica: Replica, layout: SlotLayout) -> None:
        self._averaged = [replica.buffers[name] for name in layout.buffer_names]
        self._kept = [replica.buffers[name] for name in layout.kept_names]
        self._initial = [buffer.clone() for buffer in [*self._averaged, *self._kept]]

    def remember(self) -> None:
        """Take the present values for those that every shard of the step starts from."""
        for initial, buffer in zip(self._initial, [*self._averaged, *self._kept], strict=True):
            initial.copy_(buffer)

    def values(self) -> list[torch.Tensor]:
        """Copies of the present values."""
        return [buffer.clone() for buffer in [*self._averaged, *self._kept]]

    def put_back(self, values: Sequence[torch.Tensor]) -> None:
        """Make what `values` has given the present values."""
        for buffer, value in zip([*self._averaged, *self._kept], values, strict=True):
            buffer.copy_(value)

    def reset(self) -> None:
        """Go back to the values that every shard starts from."""
        for buffer, initial in zip([*self._averaged, *self._kept], self._initial, strict=True):
            buffer.copy_(initial)

    def write_to(self, slot: Slot, weight: float) -> list[bool]:
        """Write what a shard has left; returns which averaged buffers it has changed."""
        for target, buffer in zip(slot.buffers, self._averaged, strict=True):
            target.copy_(buffer * weight)
        for target, buffer in zip(slot.kept, self._kept, strict=True):
            target.copy_(buffer)
        return [
            not torch.equal(buffer, initial)
            for buffer, initial in zip(self._averaged, self._initial, strict=False)
        ]

    def take(self, root: Slot, changed: Sequence[bool], kept: Sequence[torch.Tensor]) -> None:
        """Take over the means in `root`, where some shard changed them, and the `kept` ones."""
        for buffer, mean, was_changed in zip(self._averaged, root.buffers, changed, strict=True):
            if was_changed:
                buffer.copy_(mean)
        for buffer, value in zip(self._kept, kept, strict=True):
            buffer.copy_(value)
