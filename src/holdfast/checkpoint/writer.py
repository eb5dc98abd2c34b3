"""Writer: one worker's part of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.arena.layout import Layout
from holdfast.checkpoint import names, parts
from holdfast.checkpoint.manifest import PartFile
from holdfast.checkpoint.seal import Seal
from holdfast.checkpoint.storage import Storage


def write_part(
    storage: Storage,
    draft: str,
    state: memoryview,
    layout: Layout,
    index: int,
    count: int,
    seal: Seal,
) -> PartFile:
    """Write the chunks of one of several parts into `draft`, durably.

    A chunk is digested, encrypted and written before the next one is touched, while the caches of
    the processor have it.

    Args:
        storage: Where the checkpoint is written.
        draft: Its name until it is published.
        state: The state, layout.size_bytes long.
        layout: The place of each tensor in it.
        index: The position of the worker among those of its host.
        count: The number of workers of its host.
        seal: Encrypts it, if it has a key for that.

    Raises:
        OSError: The storage is full or unreachable.
    """
    chunks = parts.chunks_of(index, count, layout.size_bytes)
    start, end = parts.byte_range(chunks, layout.size_bytes)
    file, digests = f"part-{index}-of-{count}.safetensors", list[str]()
    encrypter = seal.encrypter(names.checkpoint_of(draft), file)

    def pieces() -> Iterator[bytes | memoryview]:
        yield parts.header(layout, start, end)
        for number in chunks:
            first, last = parts.byte_range(range(number, number + 1), layout.size_bytes)
            chunk = state[first:last]
            digests.append(parts.digest(chunk, seal.digest_kind))
            yield chunk if encrypter is None else encrypter.encrypt(number, chunk)

    size = storage.write_synced(draft, file, pieces())
    return PartFile(
        file=file,
        size_bytes=size,
        first_chunk=chunks.start,
        digests=tuple(digests),
        encryption=None if encrypter is None else encrypter.record(),
    )
