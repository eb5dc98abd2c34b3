"""Reader: the state of a checkpoint, or its files as they are stored, chunk by chunk, verified."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from holdfast.checkpoint import parts
from holdfast.checkpoint.manifest import Manifest, PartFile
from holdfast.checkpoint.storage import Storage
from holdfast.checkpoint.store import CheckpointStore
from holdfast.errors import CheckpointError

Memory = Callable[[int, int], memoryview]
"""Gives the memory for the state between two bytes, which is written to."""


READERS: Final = 2
"""Chunks that are read at a time by a process that reads alone: one is compared with its digest
while the kernel reads ahead. More of them are slower."""


def load_state(
    store: CheckpointStore,
    name: str,
    manifest: Manifest,
    state: memoryview,
    chunks: range | None = None,
) -> None:
    """Load the state of a checkpoint, or some `chunks` of it; as `read_state`.

    Args:
        store: Has the checkpoint, and the key if it is encrypted.
        name: Its name.
        manifest: Its manifest.
        state: Takes the state, manifest.size_bytes long; only the chunks are written to.
        chunks: Chunks to read, if other processes read the others; all by default.
    """

    def memory(start: int, end: int) -> memoryview:
        return state[start:end]

    readers = READERS if chunks is None else 1
    for _ in read_state(store, name, manifest, memory, chunks, readers=readers):
        pass


def read_state(
    store: CheckpointStore,
    name: str,
    manifest: Manifest,
    memory: Memory,
    chunks: range | None = None,
    *,
    readers: int = 1,
) -> Iterator[tuple[int, int]]:
    """Read the state of a checkpoint; yields the byte range of each chunk once it is verified.

    Args:
        store: Has the checkpoint, and the key if it is encrypted.
        name: Its name.
        manifest: Its manifest.
        memory: Takes the chunks. What was read before an error stays there.
        chunks: Chunks to read; all by default.
        readers: Number of chunks to read at a time.

    Raises:
        CheckpointError: A file holds something else than the manifest says.
        JobError: It is encrypted, and the key is missing or another one.
        OSError: A file cannot be read.
    """
    where = store.location(name)
    decrypters = [
        store.seal.decrypter(name, part, f"{where}/{part.file}") for part in manifest.parts
    ]
    for part, decrypter in zip(manifest.parts, decrypters, strict=True):
        wanted = part.chunks if chunks is None else _common(part.chunks, chunks)
        if not wanted:
            continue
        for chunk in _chunks(
            store.storage, name, manifest, part, memory, wanted, readers, cached=True
        ):
            # The digests are of the plain state: the check covers storage and decryption.
            if decrypter is not None:
                decrypter.decrypt(chunk.number, chunk.memory)
            chunk.check(part.digests[chunk.number - part.first_chunk], manifest.digest_kind)
            yield chunk.start, chunk.end


def read_part(
    storage: Storage,
    name: str,
    manifest: Manifest,
    part: PartFile,
    memory: Memory,
    *,
    cached: bool = True,
) -> Iterator[tuple[int, int]]:
    """Read one part as it is stored, without a key: of one that is encrypted, the ciphertext.

    Args:
        storage: Storage of the checkpoint.
        name: Its name.
        manifest: Its manifest.
        part: The part.
        memory: Takes the chunks.
        cached: Defined in `Storage.read`.

    Raises:
        CheckpointError: The file holds something else than the manifest says.
        OSError: It cannot be read.
    """
    for chunk in _chunks(storage, name, manifest, part, memory, part.chunks, 1, cached=cached):
        chunk.check(part.stored_digests[chunk.number - part.first_chunk], manifest.digest_kind)
        yield chunk.start, chunk.end


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A chunk that was read.

    Attributes:
        number: Its number in the state.
        start, end: Its byte range there.
        memory: Holds it.
        where: Its file, for messages.
    """

    number: int
    start: int
    end: int
    memory: memoryview
    where: str

    def check(self, stated: str, kind: parts.DigestKind) -> None:
        """Raises: CheckpointError: It has another digest than the manifest says."""
        if parts.digest(self.memory, kind) != stated:
            raise CheckpointError(
                f"{self.where}: chunk {self.number} of the state does not match its digest"
            )


def _chunks(
    storage: Storage,
    name: str,
    manifest: Manifest,
    part: PartFile,
    memory: Memory,
    wanted: range,
    readers: int,
    *,
    cached: bool,
) -> Iterator[_Chunk]:
    """The wanted chunks of a file whose size and header are as they must be."""
    where = f"{storage.location(name)}/{part.file}"
    first, last = parts.byte_range(part.chunks, manifest.size_bytes)
    header = parts.header(manifest.layout, first, last)
    if part.size_bytes != len(header) + last - first:
        raise CheckpointError(f"{where} has {part.size_bytes} bytes, which its layout does not")
    # The header follows from the layout, so it is compared as a whole and never parsed.
    stored = bytearray(len(header))
    storage.read(name, part.file, 0, memoryview(stored), cached=cached)
    if stored != header:
        raise CheckpointError(f"{where} has a damaged header")

    def read(number: int) -> _Chunk:
        start, end = parts.byte_range(range(number, number + 1), manifest.size_bytes)
        chunk = memory(start, end)
        storage.read(name, part.file, len(header) + start - first, chunk, cached=cached)
        return _Chunk(number, start, end, chunk, where)

    if readers == 1:
        yield from map(read, wanted)
        return
    # Chunks are yielded in order; while one is checked, others are read.
    pool = ThreadPoolExecutor(readers, thread_name_prefix="read")
    try:
        yield from pool.map(read, wanted)
    finally:
        pool.shutdown(cancel_futures=True)


def _common(left: range, right: range) -> range:
    """Intersection of two ranges."""
    return range(max(left.start, right.start), min(left.stop, right.stop))
