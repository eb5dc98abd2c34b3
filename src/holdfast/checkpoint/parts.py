"""Who writes which part of the state, and what it is called there. Pure.

The state is one flat stretch of bytes (`arena.replica`). It is cut into chunks of 4 MiB, each with
a digest of its own, and a part is a whole number of neighbouring chunks. So the digests, and the
root over them, are the same however many workers wrote the checkpoint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.arena.layout import ITEM_BYTES, Entry, Layout

CHUNK_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor, or a run of its elements, inside one part.

    Attributes:
        key: Its name in the part's file: the tensor's, with `[first:end]` if it is not whole.
        start, end: Where it lies in the state, bytes.
        shape: The tensor's shape, or `(elements,)` if it is not whole.
    """

    key: str
    dtype: str
    start: int
    end: int
    shape: tuple[int, ...]


def num_chunks(size_bytes: int) -> int:
    """How many chunks a state of `size_bytes` is cut into."""
    return -(-size_bytes // CHUNK_BYTES)


def chunks_of(rank: int, world_size: int, size_bytes: int) -> range:
    """The chunks that `rank` writes: even shares, in rank order."""
    total = num_chunks(size_bytes)
    return range(total * rank // world_size, total * (rank + 1) // world_size)


def byte_range(chunks: range, size_bytes: int) -> tuple[int, int]:
    """Where `chunks` lie in a state of `size_bytes`."""
    return chunks.start * CHUNK_BYTES, min(chunks.stop * CHUNK_BYTES, size_bytes)


def pieces(layout: Layout, start: int, end: int) -> list[Piece]:
    """The tensors, whole or cut, between the bytes `start` and `end` of the state.

    Tensors without elements have no bytes and are in no part.
    """
    found = []
    for entry in layout.entries:
        first, last = max(entry.offset, start), min(entry.end, end)
        if first < last:
            found.append(_piece(entry, first, last))
    return found


def _piece(entry: Entry, first: int, last: int) -> Piece:
    if (first, last) == (entry.offset, entry.end):
        return Piece(entry.name, entry.dtype, first, last, entry.shape)
    item = ITEM_BYTES[entry.dtype]
    lo, hi = (first - entry.offset) // item, (last - entry.offset) // item
    return Piece(f"{entry.name}[{lo}:{hi}]", entry.dtype, first, last, (hi - lo,))


def digests(data: memoryview) -> tuple[str, ...]:
    """SHA-256 of every chunk of `data`, which begins at a chunk's start."""
    return tuple(
        hashlib.sha256(data[start : start + CHUNK_BYTES]).hexdigest()
        for start in range(0, len(data), CHUNK_BYTES)
    )


def root(chunk_digests: Sequence[str]) -> str:
    """One digest over the digests of all chunks, in order."""
    return hashlib.sha256(b"".join(bytes.fromhex(digest) for digest in chunk_digests)).hexdigest()
