"""Reader: the state of a checkpoint, chunk by chunk, each compared with its digest."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from holdfast.checkpoint import parts
from holdfast.checkpoint.manifest import Manifest, PartFile
from holdfast.checkpoint.storage import Storage
from holdfast.errors import CheckpointError

Memory = Callable[[int, int], memoryview]
"""Gives the memory for the state between two bytes, which is written to."""


def read_state(
    storage: Storage, name: str, manifest: Manifest, memory: Memory
) -> Iterator[tuple[int, int]]:
    """Read the state of a checkpoint; yields the byte range of each chunk once it is verified.

    Args:
        storage: Where the checkpoint is.
        name: Its name.
        manifest: Its manifest.
        memory: Takes the chunks. What was read before an error stays there.

    Raises:
        CheckpointError: A file holds something else than the manifest says.
        OSError: A file cannot be read.
    """
    for part in manifest.parts:
        yield from read_part(storage, name, manifest, part, memory)


def read_part(
    storage: Storage,
    name: str,
    manifest: Manifest,
    part: PartFile,
    memory: Memory,
    *,
    cached: bool = True,
) -> Iterator[tuple[int, int]]:
    """Read one part, as `read_state` does; unless `cached`, from the medium itself."""
    where = f"{storage.location(name)}/{part.file}"
    chunks = range(part.first_chunk, part.first_chunk + len(part.digests))
    first, last = parts.byte_range(chunks, manifest.size_bytes)
    header = parts.header(manifest.layout, first, last)
    if part.size_bytes != len(header) + last - first:
        raise CheckpointError(f"{where} has {part.size_bytes} bytes, which its layout does not")
    stored = bytearray(len(header))
    storage.read(name, part.file, 0, memoryview(stored), cached=cached)
    if stored != header:
        raise CheckpointError(f"{where} has a damaged header")
    for number, stated in zip(chunks, part.digests, strict=True):
        start, end = parts.byte_range(range(number, number + 1), manifest.size_bytes)
        chunk = memory(start, end)
        storage.read(name, part.file, len(header) + start - first, chunk, cached=cached)
        if parts.digest(chunk) != stated:
            raise CheckpointError(f"{where}: chunk {number} of the state does not match its digest")
        yield start, end
