"""Holding: the part of the state that one worker has in its memory.

    whole   a a a a │ b b │ c c c c c c        the state, as every checkpoint has it
    own     a a │ b │ c c c                    what one of two workers holds of it

Most workers hold all. Where a model is divided over the workers, one holds some rows of each tensor
(`parallel.zero`) or some of the tensors (`parallel.pipeline`). Pure; knows no torch.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import NamedTuple

from holdfast.arena.layout import Entry, Layout, aligned


class Rows(NamedTuple):
    """Rows of a tensor, along its first dimension.

    Attributes:
        first, number: Rows that a worker holds: the first, and how many.
        allocated: Rows that it has memory for; at least `number`.
    """

    first: int
    number: int
    allocated: int


class Piece(NamedTuple):
    """A range of the state that a worker holds, bytes.

    Attributes:
        start: Its offset in the whole.
        own: Its offset in the worker's memory.
        size: Its size.
    """

    start: int
    own: int
    size: int


@dataclass(frozen=True, slots=True)
class Holding:
    """The part of the state that one worker holds.

    Attributes:
        whole: Layout of the state.
        own: Layout of the worker's memory.
        pieces: Pieces that it holds, in the order of the whole.
        memory: Offset and size of the memory for each tensor that it holds, bytes.
    """

    whole: Layout
    own: Layout
    pieces: tuple[Piece, ...]
    memory: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of_all(cls, layout: Layout) -> Holding:
        """All of the state."""
        return cls(layout, layout, (Piece(0, 0, layout.size_bytes),))

    @classmethod
    def of_rows(cls, whole: Layout, rows_of: Callable[[Entry], Rows | None]) -> Holding:
        """Some of the tensors, or rows of them.

        Args:
            whole: Layout of the state.
            rows_of: Gives the rows of a tensor that the worker holds: all of those of one without
                dimensions are one row. None if it has no part of it.
        """
        entries = []
        pieces = []
        memory = {}
        end = 0
        for entry in whole.entries:
            rows = rows_of(entry)
            if rows is None:
                continue
            height = entry.shape[0] if entry.shape else 1
            row_bytes = entry.size_bytes // max(height, 1)
            shape = (rows.number, *entry.shape[1:]) if entry.shape else ()
            size = rows.number * row_bytes
            entries.append(replace(entry, shape=shape, offset=end))
            if size:
                pieces.append(Piece(entry.offset + rows.first * row_bytes, end, size))
            memory[entry.name] = (end, rows.allocated * row_bytes)
            end += aligned(rows.allocated * row_bytes)
        return cls(whole, Layout(tuple(entries), end), tuple(pieces), memory)

    @property
    def is_all(self) -> bool:
        """True if the worker holds all of the state."""
        return self.own is self.whole

    @property
    def cuts_tensors(self) -> bool:
        """True if it holds a part of a tensor."""
        shapes = {entry.name: entry.shape for entry in self.whole.entries}
        return any(shapes[entry.name] != entry.shape for entry in self.own.entries)

    def within(self, start: int, end: int) -> Iterator[Piece]:
        """Pieces that the worker holds between two offsets in its memory."""
        for piece in self.pieces:
            low = max(piece.own, start)
            high = min(piece.own + piece.size, end)
            if low < high:
                yield Piece(piece.start + low - piece.own, low, high - low)

    def between(self, start: int, end: int) -> Iterator[Piece]:
        """Pieces that the worker holds between two offsets in the whole."""
        first = bisect.bisect_right(self.pieces, start, key=attrgetter("start")) - 1
        for piece in self.pieces[max(first, 0) :]:
            if piece.start >= end:
                return
            low = max(piece.start, start)
            high = min(piece.start + piece.size, end)
            if low < high:
                yield Piece(low, piece.own + low - piece.start, high - low)
