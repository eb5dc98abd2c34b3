"""Norms: the 2-norm of a whole gradient, as a tensor on its device.

On a CPU the gradient is squared by the blocks of a slot, so the norm is that of
`collectives.exact` to the last bit. On a GPU it is made of one norm a parameter: the bits of a
reduction depend on its shape there, so every worker reduces the whole gradient in the same calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch

from holdfast.arena.layout import ALIGNMENT
from holdfast.arena.tensors import DTYPES, as_real
from holdfast.collectives.slot import BLOCK, SlotLayout, square
from holdfast.worker.step.commit import is_finite, norm_of

Gradients = Sequence[torch.Tensor | None]
"""By parameter."""


@dataclass(frozen=True, slots=True)
class GradientNorm:
    """The norm of a gradient.

    Attributes:
        total: The norm of all of it, float64[].
        by_parameter: Gives the norm of each parameter, 0 without a gradient; waits for the device.
    """

    total: torch.Tensor
    by_parameter: Callable[[], list[float]]


Norm = Callable[[Gradients], GradientNorm]

_WIDE: Final = (torch.float64, torch.complex128)


def norm_on(
    device: torch.device, trained: Mapping[str, torch.Tensor], buffers: Mapping[str, torch.Tensor]
) -> Norm:
    """The norm for gradients on a device.

    Args:
        device: The device.
        trained: The parameters that get a gradient, by name.
        buffers: The model's buffers by name.
    """
    return BlockNorm(SlotLayout(trained, buffers)) if device.type == "cpu" else norm_of_norms


def norm_of_norms(gradients: Gradients) -> GradientNorm:
    """The norm of the norms of all parameters; nothing waits for the device."""
    norms: list[torch.Tensor | None] = [None] * len(gradients)
    # In float32 at least, and together as far as that is one call.
    for dtype in (torch.float32, torch.float64):
        own = {
            at: as_real(each)
            for at, each in enumerate(gradients)
            if each is not None and (each.dtype in _WIDE) == (dtype is torch.float64)
        }
        if own:
            found = torch.stack(torch._foreach_norm(list(own.values()), 2, dtype=dtype)).double()
            for at, norm in zip(own, found.unbind(), strict=True):
                norms[at] = norm
    present = [each for each in norms if each is not None]
    total = torch.linalg.vector_norm(torch.stack(present)) if present else torch.zeros(()).double()
    return GradientNorm(total, lambda: [0.0 if each is None else float(each) for each in norms])


class BlockNorm:
    """The norm of gradients in the memory of a CPU.

    Args:
        layout: Layout of a slot with these gradients.
    """

    def __init__(self, layout: SlotLayout) -> None:
        self._num_blocks = len(layout.blocks)
        # Of each block of a gradient: its dtype and length, and what it has of which parameter.
        self._blocks = [
            (
                DTYPES[layout.dtype_ranges[at][0]],
                end - start,
                [
                    _Part(
                        parameter, max(start, first) - first, min(end, last) - first, first - start
                    )
                    for parameter, (where, first, last) in enumerate(layout.gradient_spans)
                    if where == at and first < end and last > start
                ],
            )
            for at, start, end in layout.blocks[: layout.num_gradient_blocks]
        ]
        self._scratch = {
            dtype: torch.empty(BLOCK, dtype=dtype)
            for dtype in {dtype for dtype, *_ in self._blocks}
        }

    def __call__(self, gradients: Gradients) -> GradientNorm:
        flat = [None if g is None else as_real(g.contiguous()).view(-1) for g in gradients]
        squares = torch.zeros(self._num_blocks, dtype=torch.float64)
        for number, (dtype, length, parts) in enumerate(self._blocks):
            squares[number] = square(self._block(flat, self._scratch[dtype][:length], parts))
        total = torch.tensor(math.sqrt(float(squares.sum())), dtype=torch.float64)
        # The gradient is used up when the norms of its parameters are asked for.
        norms = [] if is_finite(float(total)) else [0.0 if g is None else norm_of(g) for g in flat]
        return GradientNorm(total, lambda: norms)

    def _block(
        self, gradients: Gradients, scratch: torch.Tensor, parts: list[_Part]
    ) -> torch.Tensor:
        """A block of the gradient: a part of a long tensor, else put together in `scratch`."""
        whole = len(parts) == 1 and parts[0].end - parts[0].start == len(scratch)
        gradient = gradients[parts[0].parameter] if whole else None
        # Kernels may round by alignment, and a slot is aligned.
        if gradient is not None:
            piece = gradient[parts[0].start : parts[0].end]
            if piece.data_ptr() % ALIGNMENT == 0:
                return piece
        scratch.zero_()
        for part in parts:
            gradient = gradients[part.parameter]
            if gradient is not None:
                at = part.start + part.offset
                piece = gradient[part.start : part.end]
                scratch[at : at + len(piece)] = piece
        return scratch


class _Part(NamedTuple):
    """What a block has of a parameter.

    Attributes:
        parameter: Its number.
        start, end: Elements of its gradient.
        offset: Place of its first element, relative to the block's.
    """

    parameter: int
    start: int
    end: int
    offset: int
