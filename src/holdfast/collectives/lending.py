"""Lending: gradients that a worker's reducer reads where autograd left them, for one step.

Only one worker reads a given block of a slot before the step is over. So a worker copies to its
slots only what others read, and lends the blocks that it sums itself:

    gradient   ░░░░▒▒▒▒░░░░        ░ blocks of other workers: copied to the slot
    slot       ░░░░    ░░░░        ▒ own blocks: read from the gradient by the own reducer
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from holdfast.arena.layout import ALIGNMENT
from holdfast.arena.tensors import as_real, copy_past_cache, flattened
from holdfast.collectives.slot import Slot, SlotLayout


class Lending:
    """The lent gradients of one worker.

    Args:
        layout: Layout of its slots.
    """

    def __init__(self, layout: SlotLayout) -> None:
        self._layout = layout
        self._own_blocks: list[list[int]] = []
        self._lent: dict[tuple[int, int], torch.Tensor] = {}

    def assign_blocks(self, own: Sequence[int]) -> None:
        """Lend only these blocks from now on, which the own reducer sums."""
        self._own_blocks = [self._within(own, *span) for span in self._layout.gradient_spans]

    def _within(self, own: Sequence[int], at: int, start: int, end: int) -> list[int]:
        """The blocks among `own` that are whole between two elements of a range."""
        return [
            index
            for index in own
            for block_at, block_start, block_end in [self._layout.blocks[index]]
            if at == block_at and start <= block_start and block_end <= end
        ]

    def write(self, number: int, slot: Slot, gradients: Sequence[torch.Tensor | None]) -> None:
        """Lend the own blocks of a partial sum, and write the rest to its slot.

        Args:
            number: Number of the slot.
            slot: The slot.
            gradients: Gradients by parameter; they must not change until `end`.
        """
        for parameter, gradient in enumerate(gradients):
            self.write_one(number, slot, parameter, gradient)

    def write_one(
        self, number: int, slot: Slot, parameter: int, gradient: torch.Tensor | None
    ) -> None:
        """Do what `write` does for one parameter."""
        target = slot.gradients[parameter]
        if gradient is None:
            target.zero_()
            return
        real = as_real(target)
        flat = flattened(as_real(gradient), real)
        for piece in self._lend(number, parameter, flat):
            copy_past_cache(flattened(real, real)[piece], flat[piece])

    def _lend(self, number: int, parameter: int, gradient: torch.Tensor) -> list[slice]:
        """Lend the own blocks of a flat gradient; returns the elements that are not lent."""
        # Kernels may round by alignment, so a gradient that begins elsewhere than a slot is copied.
        is_aligned = gradient.data_ptr() % ALIGNMENT == 0
        _, origin, _ = self._layout.gradient_spans[parameter]
        written = 0
        rest = []
        for index in self._own_blocks[parameter] if is_aligned else ():
            _, start, end = self._layout.blocks[index]
            self._lent[number, index] = gradient[start - origin : end - origin]
            rest.append(slice(written, start - origin))
            written = end - origin
        return [each for each in (*rest, slice(written, len(gradient))) if each.start < each.stop]

    def block(self, number: int, index: int) -> torch.Tensor | None:
        """A block of the sum of a slot, where it is lent; None if the slot has it."""
        return self._lent.get((number, index))

    def end(self) -> None:
        """Forget the lent gradients."""
        self._lent.clear()
