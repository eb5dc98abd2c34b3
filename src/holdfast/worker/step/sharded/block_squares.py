"""Block squares: the norm of a gradient whose rows are divided over the workers.

A norm is made of the squares of the blocks of a slot; see `collectives.slot`. A block that is made
of rows of several workers is put together by the one that has its beginning, so that the norm has
the bits of an undivided gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import torch

from holdfast.arena.layout import ALIGNMENT
from holdfast.arena.tensors import DTYPES
from holdfast.collectives.slot import BLOCK, SlotLayout, square
from holdfast.worker.step.sharded.held_rows import Held, held

_WORD: Final = 8
"""Bytes that the size of a message part is a multiple of."""


class BlockGroup(Protocol):
    """Moves parts of blocks between workers."""

    def swap(self, sent: Sequence[torch.Tensor], sizes: Sequence[int]) -> Sequence[torch.Tensor]:
        """Send a message to each worker; returns what each has sent.

        Args:
            sent: A message for each worker, uint8[n].
            sizes: The size of the message from each.
        """
        ...

    def sum(self, values: torch.Tensor) -> None:
        """Add the values of all workers, in place."""
        ...


class BlockPart(NamedTuple):
    """A part of a block that one worker has.

    Attributes:
        owner: The worker.
        parameter: Number of the parameter.
        start, end: In the parameter, elements.
        at: In the block, elements.
    """

    owner: int
    parameter: int
    start: int
    end: int
    at: int


class BlockSquares:
    """The squares of the blocks of a gradient.

    Args:
        layout: Has the blocks.
        shapes: Shapes of the parameters, in the order of the layout.
        rank: This worker.
        num_workers: Workers that divide the rows.
        group: Moves parts of blocks.
    """

    def __init__(
        self,
        layout: SlotLayout,
        shapes: Sequence[torch.Size],
        rank: int,
        num_workers: int,
        group: BlockGroup,
    ) -> None:
        self._layout = layout
        self._rank = rank
        self._group = group
        self._dtypes = [DTYPES[layout.dtype_ranges[at][0]] for at, _, _ in layout.blocks]
        cuts = [[held(shape, each, num_workers) for each in range(num_workers)] for shape in shapes]
        blocks = range(layout.num_gradient_blocks)
        self._parts = [[*_parts_of(layout, block, cuts)] for block in blocks]
        self._starts = [cut[rank].start for cut in cuts]
        self._owners = [parts[0].owner for parts in self._parts]
        # Parts that move: of each block, those that its owner lacks.
        moving = [(b, p) for b in blocks for p in self._parts[b] if p.owner != self._owners[b]]
        every = range(num_workers)
        self._sent = [[m for m in moving if self._to(m) == (rank, to)] for to in every]
        self._taken = [[m for m in moving if self._to(m) == (of, rank)] for of in every]
        self._scratch: dict[torch.dtype, torch.Tensor] = {}

    def _to(self, moved: tuple[int, BlockPart]) -> tuple[int, int]:
        return moved[1].owner, self._owners[moved[0]]

    def norm(self, of_names: Mapping[str, torch.Tensor | None]) -> float:
        """The 2-norm of the gradient.

        Args:
            of_names: Part that this worker holds of each parameter's gradient, flat; None is zero.
        """
        gradients = [of_names[name] for name in self._layout.parameter_names]
        received = self._swap(gradients)
        squares = torch.zeros(len(self._layout.blocks), dtype=torch.float64)
        for block, owner in enumerate(self._owners):
            if owner == self._rank:
                squares[block] = square(self._joined(block, gradients, received))
        self._group.sum(squares)
        return math.sqrt(float(squares.sum()))

    def _swap(
        self, gradients: Sequence[torch.Tensor | None]
    ) -> Mapping[tuple[int, BlockPart], torch.Tensor]:
        """The parts of this worker's blocks that others have."""
        messages = []
        for moved in self._sent:
            message = torch.zeros(self._size_of(moved), dtype=torch.uint8)
            for (block, part), place in zip(moved, self._places(moved), strict=True):
                values = self._own(part, gradients)
                if values is not None:
                    size = values.numel() * values.element_size()
                    message[place : place + size].view(self._dtypes[block]).copy_(values)
            messages.append(message)
        sizes = [self._size_of(moved) for moved in self._taken]
        received = {}
        for moved, message in zip(self._taken, self._group.swap(messages, sizes), strict=True):
            for (block, part), place in zip(moved, self._places(moved), strict=True):
                dtype = self._dtypes[block]
                size = (part.end - part.start) * dtype.itemsize
                received[block, part] = message[place : place + size].view(dtype)
        return received

    def _places(self, moved: Sequence[tuple[int, BlockPart]]) -> Iterator[int]:
        """The offset of each part in a message, bytes."""
        offset = 0
        for block, part in moved:
            yield offset
            offset += self._padded(block, part)

    def _size_of(self, moved: Sequence[tuple[int, BlockPart]]) -> int:
        return sum(self._padded(block, part) for block, part in moved)

    def _padded(self, block: int, part: BlockPart) -> int:
        size = (part.end - part.start) * self._dtypes[block].itemsize
        return -(-size // _WORD) * _WORD

    def _own(
        self, part: BlockPart, gradients: Sequence[torch.Tensor | None]
    ) -> torch.Tensor | None:
        rows = gradients[part.parameter]
        first = self._starts[part.parameter]
        return None if rows is None else rows[part.start - first : part.end - first]

    def _joined(
        self,
        block: int,
        gradients: Sequence[torch.Tensor | None],
        received: Mapping[tuple[int, BlockPart], torch.Tensor],
    ) -> torch.Tensor:
        """A whole block, aligned, with padding."""
        _, start, end = self._layout.blocks[block]
        parts = self._parts[block]
        if len(parts) == 1 and parts[0].end - parts[0].start == end - start:
            values = self._own(parts[0], gradients)
            if values is not None and values.data_ptr() % ALIGNMENT == 0:
                return values.to("cpu")
        joined = self._scratch_of(self._dtypes[block])[: end - start].zero_()
        for part in parts:
            is_own = part.owner == self._rank
            values = self._own(part, gradients) if is_own else received[block, part]
            if values is not None:
                joined[part.at : part.at + part.end - part.start].copy_(values)
        return joined

    def _scratch_of(self, dtype: torch.dtype) -> torch.Tensor:
        if dtype not in self._scratch:
            self._scratch[dtype] = torch.empty(BLOCK, dtype=dtype)
        return self._scratch[dtype]


def _parts_of(
    layout: SlotLayout, block: int, cuts: Sequence[Sequence[Held]]
) -> Iterator[BlockPart]:
    """The parts of a block, in their order; the owner of the first is that of the block."""
    at, first, last = layout.blocks[block]
    spans = [(span, number) for number, span in enumerate(layout.gradient_spans) if span[0] == at]
    owner: int | None = None
    for (_, start, end), number in sorted(spans):
        low = max(first - start, 0)
        high = min(last, end) - start
        if low >= high:
            continue
        parts = [
            (rank, max(low, each.rows_start), min(high, each.rows_end))
            for rank, each in enumerate(cuts[number])
            if max(low, each.rows_start) < min(high, each.rows_end)
        ]
        owner = parts[0][0] if owner is None else owner
        mine = cuts[number][owner]
        # What the block's owner holds of it need not be sent.
        if mine.start <= low and high <= mine.end:
            parts = [(owner, low, high)]
        for rank, begin, stop in parts:
            yield BlockPart(rank, number, begin, stop, start + begin - first)
