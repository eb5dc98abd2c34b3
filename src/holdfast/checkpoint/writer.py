"""Writer: one part of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

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
        index: Which of the parts.
        count: How many there are.

    Raises:
        OSError: The storage is full or unreachable.
    """
    chunks = parts.chunks_of(index, count, layout.size_bytes)
    start, end = parts.byte_range(chunks, layout.size_bytes)
    file, digests = f"part-{index}-of-{count}.safetensors", list[str]()

    def pieces() -> Iterator[bytes | memoryview]:
        yield parts.header(layout, start, end)
        for first in range(start, end, parts.CHUNK_BYTES):
            chunk = state[first : min(first + parts.CHUNK_BYTES, end)]
            digests.append(parts.digest(chunk))
            yield chunk

    size = storage.write_synced(draft, file, pieces())
    return PartFile(file=file, size_bytes=size, first_chunk=chunks.start, digests=tuple(digests))
