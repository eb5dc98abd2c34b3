"""Writer: one worker's part of a checkpoint."""

from __future__ import annotations

from holdfast.arena.layout import Layout
from holdfast.checkpoint import parts
from holdfast.checkpoint.manifest import PartFile
from holdfast.checkpoint.storage import Storage


def write_part(
    storage: Storage, draft: str, state: memoryview, layout: Layout, index: int, count: int
) -> PartFile:
    """Write the chunks of one of several parts into `draft`, durably.

    Args:
        storage: Where the checkpoint is written.
        draft: Its name until it is published.
        state: The state, layout.size_bytes long.
        layout: The place of each tensor in it.
        index: The position of the worker among those of its host.
        count: The number of workers of its host.

    Raises:
        OSError: The storage is full or unreachable.
    """
    chunks = parts.chunks_of(index, count, layout.size_bytes)
    start, end = parts.byte_range(chunks, layout.size_bytes)
    own, file = state[start:end], f"part-{index}-of-{count}.safetensors"
    size = storage.write_synced(draft, file, [parts.header(layout, start, end), own])
    return PartFile(
        file=file, size_bytes=size, first_chunk=chunks.start, digests=parts.digests(own)
    )
