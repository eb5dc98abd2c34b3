"""Parts: which bytes of the state each worker writes, and the format of its file. Pure.

The state is one flat range of bytes (`arena.replica`). It is cut into chunks of 4 MiB, each with
its own digest, and a part is a whole number of neighbouring chunks. So the digests, and the root
over them, do not depend on the number of workers that wrote the checkpoint, nor on the host.

A part's file is a safetensors header, padded to 4 KiB, and then the bytes of the state as they are
in memory. The format allows no holes, so padding between tensors is a tensor `.pad.<offset>`.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import xxhash
from blake3 import blake3

from holdfast.arena.layout import ITEM_BYTES, Entry, Layout

CHUNK_BYTES: Final = 4 << 20
_HEADER_ALIGNMENT: Final = 4096


class DigestKind(enum.StrEnum):
    """Kinds of digests of chunks. Roots over digests of another kind differ."""

    XXH3 = "xxh3-128"
    """Finds damage at the speed of memory. Data can be forged to match it."""
    BLAKE3 = "blake3"
    """Finds forged data, too; a signature over other digests would prove nothing."""


class Hasher(Protocol):
    """Digests what comes in pieces."""

    def update(self, data: bytes | memoryview, /) -> object:
        """Take the next piece."""

    def hexdigest(self) -> str:
        """The digest of all pieces."""


@dataclass(frozen=True, slots=True)
class PartPiece:
    """A tensor, or a run of its elements, inside one part.

    Attributes:
        key: Its name in the part's file: the tensor's, with `[first:end]` if it is not whole.
        start, end: Its range in the state, bytes.
        shape: The tensor's shape, or `(elements,)` if it is not whole.
    """

    key: str
    dtype: str
    start: int
    end: int
    shape: tuple[int, ...]


def num_chunks(size_bytes: int) -> int:
    """Number of chunks into which a state of `size_bytes` is cut."""
    return -(-size_bytes // CHUNK_BYTES)


def chunks_of(index: int, count: int, size_bytes: int) -> range:
    """The chunks of one of `count` parts: even shares, in order."""
    total = num_chunks(size_bytes)
    return range(total * index // count, total * (index + 1) // count)


def byte_range(chunks: range, size_bytes: int) -> tuple[int, int]:
    """The range of `chunks` in a state of `size_bytes`, bytes."""
    return chunks.start * CHUNK_BYTES, min(chunks.stop * CHUNK_BYTES, size_bytes)


def pieces(layout: Layout, start: int, end: int) -> list[PartPiece]:
    """The tensors, whole or cut, between the bytes `start` and `end` of the state.

    Tensors without elements have no bytes and are in no part.
    """
    result = []
    for entry in layout.entries:
        first = max(entry.offset, start)
        last = min(entry.end, end)
        if first < last:
            result.append(_piece(entry, first, last))
    return result


def _piece(entry: Entry, first: int, last: int) -> PartPiece:
    if (first, last) == (entry.offset, entry.end):
        return PartPiece(entry.name, entry.dtype, first, last, entry.stored_shape)
    # Chunks begin at multiples of 4 MiB and tensors at multiples of 64 bytes: no element is cut.
    item = ITEM_BYTES[entry.dtype]
    lo = (first - entry.offset) // item
    hi = (last - entry.offset) // item
    return PartPiece(f"{entry.name}[{lo}:{hi}]", entry.dtype, first, last, (hi - lo,))


def header(layout: Layout, start: int, end: int) -> bytes:
    """First bytes of a file that holds the state between the bytes `start` and `end`.

    It follows from the layout, so a reader compares it as a whole and need not parse it. See the
    safetensors documentation, "Format".
    """
    table: dict[str, dict[str, object]] = {}

    def add(key: str, dtype: str, shape: Sequence[int], first: int, last: int) -> None:
        place = [first - start, last - start]
        table[key] = {"dtype": dtype, "shape": [*shape], "data_offsets": place}

    at = start
    # The format allows no holes: what is between two tensors, and after the last, gets a name too.
    for piece in [*pieces(layout, start, end), None]:
        first = end if piece is None else piece.start
        if first > at:
            add(f".pad.{at}", "U8", [first - at], at, first)
        if piece is not None:
            add(piece.key, piece.dtype, piece.shape, piece.start, piece.end)
            at = piece.end
    text = json.dumps(table, separators=(",", ":")).encode()
    # So the state begins at a multiple of 4 KiB in the file, as direct I/O needs it.
    text += b" " * (-(8 + len(text)) % _HEADER_ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def hasher(kind: DigestKind) -> Hasher:
    """Digests one chunk that comes in pieces."""
    return xxhash.xxh3_128() if kind is DigestKind.XXH3 else blake3()


def digest(chunk: memoryview, kind: DigestKind) -> str:
    """The digest of one chunk, hexadecimal."""
    digested = hasher(kind)
    digested.update(chunk)
    return digested.hexdigest()


def root(chunk_digests: Sequence[str], kind: DigestKind) -> str:
    """SHA-256 over the kind of the digests and those of all chunks, in order."""
    digested = hashlib.sha256(kind.encode())
    for each in chunk_digests:
        digested.update(bytes.fromhex(each))
    return digested.hexdigest()
