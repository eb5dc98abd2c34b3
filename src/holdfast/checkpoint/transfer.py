"""Transfer: a whole checkpoint as a stream of bytes, from the store of one host to that of another.

    the manifest, as one piece │ the state in order, in pieces of at most 256 KiB

The headers of the files follow from the manifest (`parts.header`), so they are not sent. The
sender verifies each chunk when it reads it, and the receiver before the next: a torn or damaged
stream is never published. Chunks travel as they are stored. Those of an encrypted checkpoint are
verified by the digests of their ciphertext, so neither end needs the key.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import chain
from typing import Final

from holdfast.checkpoint import names, parts
from holdfast.checkpoint.manifest import Manifest, PartFile
from holdfast.checkpoint.reader import read_part
from holdfast.checkpoint.store import CheckpointStore
from holdfast.errors import CheckpointError
from holdfast.wire.checkpoint_service import CheckpointMessage

PIECE_BYTES: Final = 256 << 10
"""The longest piece except for the manifest. It divides a chunk."""
_STREAM: Final = "a checkpoint from another host"


def described(manifest: Manifest) -> CheckpointMessage:
    """Description of a checkpoint that a host has."""
    return CheckpointMessage(
        step=manifest.step,
        content_sha256=manifest.content_sha256,
        size_bytes=manifest.size_bytes,
    )


def newest_described(store: CheckpointStore) -> CheckpointMessage | None:
    """The newest checkpoint of a store whose manifest can be read; None if there is none.

    Raises:
        CheckpointError: It was damaged meanwhile.
        OSError: It, or a newer one, cannot be read.
    """
    newest = store.newest()
    return None if newest is None else described(store.manifest(newest.name))


def pieces(store: CheckpointStore, wanted: CheckpointMessage) -> Iterator[bytes]:
    """A checkpoint as a stream.

    Raises:
        CheckpointError: It is damaged, or the store has another one of this step.
        OSError: It cannot be read.
    """
    name = names.checkpoint_name(wanted.step)
    manifest = store.manifest(name)
    _check_is(wanted, manifest, store.location(name))
    yield manifest.model_dump_json().encode()
    scratch = memoryview(bytearray(parts.CHUNK_BYTES))
    chunks = chain.from_iterable(
        read_part(store.storage, name, manifest, part, lambda start, end: scratch[: end - start])
        for part in manifest.parts
    )
    for start, end in chunks:
        for first in range(0, end - start, PIECE_BYTES):
            yield bytes(scratch[first : min(first + PIECE_BYTES, end - start)])


def receive(
    store: CheckpointStore, attempt: str, stream: Iterator[bytes], wanted: CheckpointMessage
) -> str:
    """Write a checkpoint that comes as a stream, and publish it; returns its name.

    Args:
        store: Takes it. If this raises, it has what it had before.
        attempt: Names the draft; see `names.draft_name`.
        stream: The pieces.
        wanted: The checkpoint that is expected.

    Raises:
        CheckpointError: What came is not that checkpoint, or not all of it.
        OSError: It cannot be written.
    """
    manifest = Manifest.parse(next(stream, b""), f"the manifest of {_STREAM}")
    # The manifest comes first, and says how many bytes must follow.
    _check_is(wanted, manifest, _STREAM)
    draft = names.draft_name(manifest.step, attempt)
    try:
        for part in manifest.parts:
            _receive_part(store, draft, manifest, part, stream)
        if next(stream, None) is not None:
            raise CheckpointError(f"{_STREAM} has more bytes than its manifest says")
        # All parts are here and verified: only now does the draft get its manifest and its name.
        store.prepare(manifest, attempt)
        return store.publish(manifest.step, attempt)
    except BaseException:
        with contextlib.suppress(OSError):  # else the next start of the run removes it
            store.discard(manifest.step, attempt)
        raise


def _receive_part(
    store: CheckpointStore, draft: str, manifest: Manifest, part: PartFile, stream: Iterator[bytes]
) -> None:
    first, last = parts.byte_range(part.chunks, manifest.size_bytes)
    header = parts.header(manifest.layout, first, last)
    if part.size_bytes != len(header) + last - first:  # before any byte is written
        raise CheckpointError(f"{_STREAM}: {part.file} has another size than its layout")
    content = _verified(stream, part, manifest)
    store.storage.write_synced(draft, part.file, chain([header], content))


def _verified(stream: Iterator[bytes], part: PartFile, manifest: Manifest) -> Iterator[bytes]:
    """The pieces of one part, each chunk compared with its digest."""
    for number, stated in zip(part.chunks, part.stored_digests, strict=True):
        start, end = parts.byte_range(range(number, number + 1), manifest.size_bytes)
        digest = parts.hasher(manifest.digest_kind)
        left = end - start
        while left:
            piece = next(stream, b"")
            if not piece:
                raise CheckpointError(f"{_STREAM} ended in chunk {number} of the state")
            if len(piece) > min(left, PIECE_BYTES):
                raise CheckpointError(f"{_STREAM} has too long a piece in chunk {number}")
            digest.update(piece)
            left -= len(piece)
            yield piece
        # The chunk is in the draft already; the error discards that with all of it.
        if digest.hexdigest() != stated:
            raise CheckpointError(f"{_STREAM}: chunk {number} does not match its digest")


def _check_is(wanted: CheckpointMessage, manifest: Manifest, where: str) -> None:
    if described(manifest) != wanted:
        raise CheckpointError(f"{where} is not the checkpoint of step {wanted.step} that was asked")
