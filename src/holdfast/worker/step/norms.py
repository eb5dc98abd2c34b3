"""Norms: the 2-norm of a whole gradient, as a tensor on its device.

On a CPU the gradient is squared by the blocks of a slot, so the norm is that of
`collectives.exact` to the last bit. On a GPU it is made of one norm a parameter: the bits of a
reduction depend on its shape there, so every worker reduces the whole gradient in the same calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from holdfast.arena.layout import ALIGNMENT
from holdfast.arena.tensors import DTYPES, as_real, flattened
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
    return BlockNorm(trained, buffers) if device.type == "cpu" else norm_of_norms


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
        trained, buffers: As `norm_on`.
    """

    def __init__(
        self, trained: Mapping[str, torch.Tensor], buffers: Mapping[str, torch.Tensor]
    ) -> None:
        layout = SlotLayout(trained, buffers)
        self._parameters = [as_real(each.detach()) for each in trained.values()]
        self._is_plain = all(
            each.is_contiguous() and not each.is_complex() for each in trained.values()
        )
        self._num_blocks = len(layout.blocks)
        self._blocks = [_Block.of(layout, index) for index in range(layout.num_gradient_blocks)]
        dtypes = {block.dtype for block in self._blocks}
        self._scratch = {dtype: torch.empty(BLOCK, dtype=dtype) for dtype in dtypes}
        self._zeros = {dtype: torch.zeros(BLOCK, dtype=dtype) for dtype in dtypes}

    def __call__(self, gradients: Gradients) -> GradientNorm:
        if self._is_plain:  # nearly always
            flat = [None if each is None else each.contiguous().view(-1) for each in gradients]
        else:
            flat = [
                None if each is None else flattened(as_real(each), like)
                for each, like in zip(gradients, self._parameters, strict=True)
            ]
        squares = torch.zeros(self._num_blocks, dtype=torch.float64)
        for number, block in enumerate(self._blocks):
            squares[number] = square(self._gathered(block, flat))
        total = torch.tensor(math.sqrt(float(squares.sum())), dtype=torch.float64)
        # The gradient is used up when the norms of its parameters are asked for.
        norms = [] if is_finite(float(total)) else [0.0 if g is None else norm_of(g) for g in flat]
        return GradientNorm(total, lambda: norms)

    def _gathered(self, block: _Block, gradients: Gradients) -> torch.Tensor:
        """A block of the gradient: a part of a long tensor, or several in scratch memory."""
        zeros = self._zeros[block.dtype]
        pieces = []
        for parameter, start, end in block.parts:
            gradient = gradients[parameter] if parameter >= 0 else None
            pieces.append(zeros[: end - start] if gradient is None else gradient[start:end])
        # Kernels may round by alignment, and a slot is aligned.
        if len(pieces) == 1 and pieces[0].data_ptr() % ALIGNMENT == 0:
            return pieces[0]
        return torch.cat(pieces, out=self._scratch[block.dtype][: block.length])


@dataclass(frozen=True, slots=True)
class _Block:
    """Elements of a block.

    Attributes:
        dtype, length: Their dtype and number.
        parts: Its parts in order, as `(parameter, start, end)`: elements of a parameter's gradient,
            or of no parameter (-1), which are zero.
    """

    dtype: torch.dtype
    length: int
    parts: list[tuple[int, int, int]]

    @classmethod
    def of(cls, layout: SlotLayout, index: int) -> _Block:
        """The block of a layout."""
        at, start, end = layout.blocks[index]
        parts = []
        done = start
        spans = sorted(
            (*span[1:], p) for p, span in enumerate(layout.gradient_spans) if span[0] == at
        )
        for first, last, parameter in spans:
            if done < last and first < end:
                if done < first:  # padding after the parameter before
                    parts.append((-1, 0, first - done))
                    done = first
                parts.append((parameter, done - first, min(end, last) - first))
                done = min(end, last)
        if done < end:
            parts.append((-1, 0, end - done))
        return cls(DTYPES[layout.dtype_ranges[at][0]], end - start, parts)
