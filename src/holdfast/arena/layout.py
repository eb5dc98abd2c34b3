"""Layout: the place of each tensor in a flat range of memory. Pure; knows no torch.

The same layout serves the replica that is trained, the gradients that are reduced, and the
checkpoint, so bytes move between them without being rearranged.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

ALIGNMENT: Final = 64
"""Bytes that every tensor's start is a multiple of: a cache line, and the widest vector. Kernels
may choose their code path by alignment, so it must not differ from run to run."""

ITEM_BYTES: Final = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2,
    "C64": 8, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip
"""Bytes an element takes, by safetensors' name of its dtype."""


@dataclass(frozen=True, slots=True)
class Field:
    """A tensor before it has a place.

    Attributes:
        strides: In elements, of a tensor without gaps that is not contiguous, such as a
            `channels_last` one; empty for a contiguous one.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] = field(default=(), kw_only=True)

    @property
    def size_bytes(self) -> int:
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)

    @property
    def dims(self) -> list[int]:
        """The dimensions, from the outermost in memory to the innermost."""
        by_stride = sorted(enumerate(self.strides), key=lambda each: each[1], reverse=True)
        return [dim for dim, _ in by_stride] or list(range(len(self.shape)))

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of a contiguous tensor with the same memory."""
        return tuple(self.shape[dim] for dim in self.dims)


@dataclass(frozen=True, slots=True)
class Entry(Field):
    """A tensor in its place, `offset` bytes from the start."""

    offset: int

    @property
    def end(self) -> int:
        return self.offset + self.size_bytes


@dataclass(frozen=True, slots=True)
class Layout:
    """Entries in the order of their offsets; `size_bytes` is a multiple of the alignment."""

    entries: tuple[Entry, ...]
    size_bytes: int

    @classmethod
    def pack(cls, fields: Iterable[Field]) -> Layout:
        """Place `fields` one after the other, each aligned."""
        entries = []
        end = 0
        for each in fields:
            entries.append(Entry(each.name, each.dtype, each.shape, end, strides=each.strides))
            end += aligned(each.size_bytes)
        return cls(tuple(entries), end)

    def dtype_ranges(self) -> Iterator[tuple[str, int, int]]:
        """The ranges of equal dtype, as `(dtype, start, end)` in bytes, padding included."""
        for dtype, group in itertools.groupby(self.entries, key=lambda entry: entry.dtype):
            members = list(group)
            yield dtype, members[0].offset, members[-1].offset + aligned(members[-1].size_bytes)

    @property
    def digest(self) -> int:
        """63 bits that tell two layouts apart."""
        return int.from_bytes(hashlib.sha256(repr(self.entries).encode()).digest()[:8]) >> 1


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """True if a tensor with these strides has no gaps, and no element twice: its dimensions are
    those of a contiguous one in some order.
    """
    count = math.prod(shape)
    if len(shape) != len(strides) or not all(0 <= stride <= count for stride in strides):
        return False
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def aligned(size_bytes: int) -> int:
    """`size_bytes`, rounded up to a multiple of ALIGNMENT."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT
