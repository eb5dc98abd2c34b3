"""Part file: writes one part of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.arena.layout import Layout
from holdfast.checkpoint import names, parts
from holdfast.checkpoint.manifest import PartFile
from holdfast.checkpoint.parts import DigestKind
from holdfast.checkpoint.sealing.seal import Seal
from holdfast.checkpoint.storage import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPart:
    """A part that was written.

    Attributes:
        file: Its entry in the manifest.
        staged_digests: The XXH3 of each chunk, with which workers compare their replicas.
    """

    file: PartFile
    staged_digests: tuple[str, ...]


def write_part(
    storage: Storage,
    draft: str,
    state: memoryview,
    layout: Layout,
    index: int,
    count: int,
    seal: Seal,
) -> WrittenPart:
    """Write the chunks of one of several parts into `draft`, durably.

    A chunk is digested, encrypted and written before the next one is touched, while the caches of
    the processor have it.

    Args:
        storage: Storage of the checkpoint.
        draft: Its name until it is published.
        state: The state, layout.size_bytes long.
        layout: The place of each tensor in it.
        index: Index of the part.
        count: Number of parts.
        seal: Encrypts it, if it has a key for that.

    Raises:
        OSError: The storage is full or unreachable.
    """
    chunks = parts.chunks_of(index, count, layout.size_bytes)
    start, end = parts.byte_range(chunks, layout.size_bytes)
    file = f"part-{index}-of-{count}.safetensors"
    kind = seal.digest_kind
    encrypter = seal.encrypter(names.checkpoint_of(draft), file)
    staged = list[str]()
    digests = list[str]()

    def pieces() -> Iterator[bytes | memoryview]:
        yield parts.header(layout, start, end)
        for number in chunks:
            first, last = parts.byte_range(range(number, number + 1), layout.size_bytes)
            # Replicas are compared before encryption, by the digest that is fastest.
            chunk = state[first:last]
            staged.append(parts.digest(chunk, DigestKind.XXH3))
            digests.append(staged[-1] if kind is DigestKind.XXH3 else parts.digest(chunk, kind))
            yield chunk if encrypter is None else encrypter.encrypt(number, chunk)

    size = storage.write_synced(draft, file, pieces())
    entry = PartFile(
        file=file,
        size_bytes=size,
        first_chunk=chunks.start,
        digests=tuple(digests),
        encryption=None if encrypter is None else encrypter.record(),
    )
    return WrittenPart(file=entry, staged_digests=tuple(staged))
