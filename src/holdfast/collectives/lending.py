"""Lending: gradients that a worker's reducer reads where autograd left them, for one step.

Only one worker reads a given block of a slot before the step is over. So a worker that holds a
single partial sum copies to its slot only what others read, and lends the blocks that it sums
itself:

    gradient   ░░░░▒▒▒▒░░░░        ░ blocks of other workers: copied to the slot
    slot       ░░░░    ░░░░        ▒ own blocks: read from the gradient by the own reducer

If the step is interrupted, or others have to read the whole slot, the lent blocks are written back.
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
        self._slot: Slot | None = None
        self._lent: dict[int, torch.Tensor] = {}

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

    def write(self, slot: Slot, gradients: Sequence[torch.Tensor | None]) -> None:
        """Lend the `gradients` of a worker's single partial sum, and write the rest to its `slot`.

        Args:
            slot: The slot of the partial sum.
            gradients: Gradients by parameter; they must not change until `end`.
        """
        self._slot = slot
        for parameter, (target, gradient) in enumerate(zip(slot.gradients, gradients, strict=True)):
            if gradient is None:
                target.zero_()
                continue
            real = as_real(target)
            flat = flattened(as_real(gradient), real)
            for piece in self._lend(parameter, flat):
                copy_past_cache(flattened(real, real)[piece], flat[piece])

    def _lend(self, parameter: int, gradient: torch.Tensor) -> list[slice]:
        """Lend the own blocks of a flat gradient; returns the elements that are not lent."""
        # Kernels may round by alignment, so a gradient that begins elsewhere than a slot is copied.
        is_aligned = gradient.data_ptr() % ALIGNMENT == 0
        _, origin, _ = self._layout.gradient_spans[parameter]
        written = 0
        rest = []
        for index in self._own_blocks[parameter] if is_aligned else ():
            _, start, end = self._layout.blocks[index]
            self._lent[index] = gradient[start - origin : end - origin]
            rest.append(slice(written, start - origin))
            written = end - origin
        return [each for each in (*rest, slice(written, len(gradient))) if each.start < each.stop]

    def block(self, index: int) -> torch.Tensor | None:
        """A block of the partial sum, where it is lent; None if the slot has it."""
        return self._lent.get(index)

    def write_back(self) -> None:
        """Write all that is lent to its slot, where other workers can read it."""
        for index, gradient in self._lent.items():
            assert self._slot is not None
            copy_past_cache(self._slot.blocks[index], gradient)
        self.end()

    def end(self) -> None:
        """Forget the lent gradients."""
        self._lent.clear()
        self._slot = None
