"""Codec: what a message of a compressed all-reduce is made of.

A range of elements is encoded in pieces of up to PIECE elements, each by itself, so that one can be
sent while the next is encoded. The size of a message follows from the number of its elements:
sender and receiver know it beforehand. A codec computes in float32, whatever the vector has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

import torch

PIECE: Final = 1 << 16
"""Elements that are encoded at a time: few enough to stay in a core's cache."""


class Codec(Protocol):
    """Encodes values with fewer bytes, and loses some of each."""

    def size(self, count: int) -> int:
        """Bytes that `count` elements take, up to PIECE; a multiple of 4."""
        ...

    def encode(self, values: torch.Tensor, out: torch.Tensor) -> None:
        """Encode float32[n] to uint8[size(n)]. A value that is not finite makes some of what is
        decoded not finite.
        """
        ...

    def decode(self, data: torch.Tensor, out: torch.Tensor) -> None:
        """Decode uint8[size(n)] to float32[n]."""
        ...


def spans(codec: Codec, elements: range) -> Iterator[tuple[slice, slice]]:
    """The pieces of a range: elements of the vector, and bytes of the message."""
    at = 0
    for start in range(elements.start, elements.stop, PIECE):
        end = min(start + PIECE, elements.stop)
        size = codec.size(end - start)
        yield slice(start, end), slice(at, at + size)
        at += size


def size_of(codec: Codec, count: int) -> int:
    """Bytes of a message of `count` elements."""
    whole, rest = divmod(count, PIECE)
    return whole * codec.size(PIECE) + (codec.size(rest) if rest else 0)


def padded(size: int) -> int:
    """A number of bytes, rounded up to a multiple of 4, so that each piece is aligned."""
    return -(-size // 4) * 4
