"""Verifying a checkpoint by reading its parts back from the disk, a chunk at a time.

It needs no torch and holds one chunk in memory, so the coordinator can do it beside its work.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from holdfast.arena.layout import Layout
from holdfast.checkpoint import parts
from holdfast.checkpoint.manifest import PartFile
from holdfast.errors import CheckpointError

Place = tuple[int, int, int]
"""Where a piece of the state begins and ends, and where it begins in its file; bytes."""


def verify_part(directory: Path, part: PartFile, layout: Layout) -> Iterator[None]:
    """Compare a part with the digests of its chunks; yields after each chunk that matches.

    Args:
        directory: The checkpoint.
        part: Of its manifest, already checked.
        layout: Of the state.

    Raises:
        CheckpointError: The file cannot be read back, or holds something else.
    """
    path = directory / part.file
    chunks = range(part.first_chunk, part.first_chunk + len(part.digests))
    pieces = parts.pieces(layout, *parts.byte_range(chunks, layout.size_bytes))
    try:
        with path.open("rb", buffering=0) as file:
            # The writer has synced the file: now what is read comes from the disk, not from memory.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            places = _places(path, file, pieces)
            for number, stated in zip(chunks, part.digests, strict=True):
                start, end = parts.byte_range(range(number, number + 1), layout.size_bytes)
                if hashlib.sha256(_chunk(file, places, start, end)).hexdigest() != stated:
                    raise CheckpointError(
                        f"{path}: chunk {number} of the state does not match its digest"
                    )
                yield
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None


def _places(path: Path, file: FileIO, pieces: Sequence[parts.Piece]) -> list[Place]:
    """Where the file holds `pieces`, by its own header."""
    try:
        with safe_open(path, framework="np"):  # the library's own checks of the header
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
        return [(p.start, p.end, 8 + size + _offset(header[p.key], p)) for p in pieces]
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} has a damaged header: {error}") from None


def _offset(stored: dict[str, Any], piece: parts.Piece) -> int:
    begin, end = map(int, stored["data_offsets"])
    found = (stored["dtype"], stored["shape"], end - begin)
    expected = (piece.dtype, list(piece.shape), piece.end - piece.start)
    if found != expected:
        raise ValueError(f"{piece.key} is {found}, not {expected}")
    return begin


def _chunk(file: FileIO, places: Sequence[Place], start: int, end: int) -> bytearray:
    """The state between the bytes `start` and `end`; padding between tensors is zero."""
    chunk = bytearray(end - start)
    for piece_start, piece_end, at in places:
        first, last = max(piece_start, start), min(piece_end, end)
        if first < last:
            file.seek(at + first - piece_start)
            _fill(file, memoryview(chunk)[first - start : last - start])
    return chunk


def _fill(file: FileIO, buffer: memoryview) -> None:
    """Read into all of `buffer` from where the file is."""
    done = 0
    while done < len(buffer):
        count = file.readinto(buffer[done:])
        if not count:
            raise OSError(f"it ends {len(buffer) - done} bytes too early")
        done += count
