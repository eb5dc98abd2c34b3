"""Verify: reads a checkpoint back from its storage, and compares every byte with its digest."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Container
from dataclasses import dataclass

from holdfast.checkpoint import names, parts
from holdfast.checkpoint.manifest import Manifest, PartFile
from holdfast.checkpoint.reader import read_part
from holdfast.checkpoint.store import MANIFEST, CheckpointStore
from holdfast.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A file of a checkpoint that has failed its verification.

    Attributes:
        is_corrupt: True if it does not match its digest; False if the storage has reported an
            error, so that it may be readable later.
        step: Step of the checkpoint.
        location: Its location now; if there is a verified checkpoint, a corrupt one is in
            quarantine.
        file: The file.
        reason: Damage in it.
    """

    is_corrupt: bool
    step: int
    location: str
    file: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """Result of reading a checkpoint back.

    Attributes:
        manifest: Its manifest; None if that is damaged itself.
        damage: Damage, at most once for each file; empty if it is verified.
    """

    manifest: Manifest | None
    damage: tuple[Damage, ...] = ()


def examine(
    store: CheckpointStore,
    name: str,
    advance: Callable[[int], None],
    verified: Container[str] = (),
) -> Examined:
    """Read a checkpoint back from the medium itself.

    Args:
        store: Has it.
        name: Its name.
        advance: Called with the size of each chunk once it is verified, bytes; what it raises ends
            this.
        verified: Digests of manifests whose parts need not be read.
    """
    try:
        manifest = store.manifest(name)
    except (CheckpointError, OSError) as error:
        return Examined(manifest=None, damage=(_damage(store, name, MANIFEST, error),))
    if manifest.sha256 in verified:
        return Examined(manifest=manifest)
    damage = list[Damage]()
    # A damaged part does not end it: the report names every damaged file.
    for part in manifest.parts:
        try:
            _read_back(store, name, manifest, part, advance)
        except (CheckpointError, OSError) as error:
            damage.append(_damage(store, name, part.file, error))
    return Examined(manifest=manifest, damage=tuple(damage))


def _read_back(
    store: CheckpointStore,
    name: str,
    manifest: Manifest,
    part: PartFile,
    advance: Callable[[int], None],
) -> None:
    scratch = memoryview(mmap.mmap(-1, parts.CHUNK_BYTES))  # whole pages are read past the cache
    for start, end in read_part(
        store.storage,
        name,
        manifest,
        part,
        lambda start, end: scratch[: end - start],
        cached=False,
    ):
        advance(end - start)


def _damage(store: CheckpointStore, name: str, file: str, error: Exception) -> Damage:
    return Damage(
        is_corrupt=not isinstance(error, OSError),
        step=names.step_of(name),
        location=store.location(name),
        file=file,
        reason=str(error),
    )
