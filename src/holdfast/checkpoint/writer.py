"""Writer: one worker's part of a checkpoint."""

from __future__ import annotations

from holdfast.arena.layout import Layout
from holdfast.checkpoint import parts
from holdfast.checkpoint.manifest import PartFile
from holdfast.checkpoint.storage import Storage


def write_part(
    storage: Storage, draft: str, state: memoryview, layout: Layout, rank: int, world_size: int
) -> PartFile:
    """Write the chunks that are assigned to `rank` into `draft`, durably.

    Args:
        storage: Where the checkpoint is written.
        draft: Its name until it is published.
        state: The state, layout.size_bytes long.
        layout: The place of each tensor in it.
        rank: The worker that writes.
        world_size: The number of workers that write.

    Raises:
        OSError: The storage is full or unreachable.
    """
    chunks = parts.chunks_of(rank, world_size, layout.size_bytes)
    start, end = parts.byte_range(chunks, layout.size_bytes)
    own, file = state[start:end], f"part-{rank}-of-{world_size}.safetensors"
    size = storage.write_synced(draft, file, [parts.header(layout, start, end), own])
    return PartFile(
        file=file, size_bytes=size, first_chunk=chunks.start, digests=parts.digests(own)
    )
