"""Backup: copies of a run's checkpoints in a second store.

    checkpoints/index.json                  the folders of whole checkpoints, oldest first
    checkpoints/step-00000200-5f0c…/        named by the step and the digest of the manifest
      00000000, 00000004, …                 the state as it is stored, in pieces of four chunks
      manifest.json                         written last

A folder with a manifest is a whole checkpoint. The content of every object follows from its name,
so an upload that was interrupted continues with the pieces that are missing, and nothing is ever
replaced by something else. Index and listings are only hints of which folders there are: what they
name is looked for by name.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Final

from holdfast.checkpoint import names, parts
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.reader import read_part
from holdfast.checkpoint.remote.objects import Objects
from holdfast.checkpoint.storage import Storage
from holdfast.checkpoint.store import MANIFEST, CheckpointStore
from holdfast.checkpoint.transfer import PIECE_BYTES
from holdfast.errors import CheckpointError

FOLDER: Final = "checkpoints"
INDEX: Final = f"{FOLDER}/index.json"
"""There is one as soon as there is a checkpoint."""
_CHUNKS: Final = 4
"""Chunks of a piece: 16 MiB, so that little is sent again after an interruption."""
_KEY_DIGITS: Final = 16

Report = Callable[[int], None]
"""Called with the bytes that are done, after each piece."""


class Backup:
    """The checkpoints of one run in a second store. Every method raises OSError if the store cannot
    be used.

    Args:
        objects: The store, at the folder of the run.
    """

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._whole: list[str] | None = None  # oldest first; None: not known yet

    @property
    def url(self) -> str:
        """Location of the run's folder, for people."""
        return self._objects.url

    def location(self, folder: str) -> str:
        """Location of a checkpoint, for people."""
        return f"{self._objects.url}/{FOLDER}/{folder}"

    def whole(self) -> list[str]:
        """The folders of whole checkpoints, in the order in which they came, newest first."""
        if self._whole is None:
            self._whole = self._found()
        return self._whole[::-1]

    def manifest(self, folder: str) -> Manifest:
        """The manifest of a checkpoint.

        Raises:
            CheckpointError: It is damaged.
            FileNotFoundError: There is none.
        """
        where = f"{self.location(folder)}/{MANIFEST}"
        return Manifest.parse(self._objects.get(f"{FOLDER}/{folder}/{MANIFEST}"), where)

    def upload(self, held: CheckpointStore, name: str, report: Report) -> None:
        """Copy a checkpoint; each chunk is verified before it is sent.

        Args:
            held: Has the checkpoint, also if it is deleted meanwhile; see `checkpoint.held`.
            name: Its name.
            report: Callback; an exception that it raises ends the upload.

        Raises:
            CheckpointError: The checkpoint is damaged.
            OSError: It cannot be read, or the store cannot be used.
        """
        manifest = held.manifest(name)
        done = 0
        folder = folder_of(manifest)
        # Pieces of an interrupted upload are kept: the folder's name fixes what they must hold.
        there = set(self._objects.children(f"{FOLDER}/{folder}"))
        for first, piece in _pieces(held.storage, name, manifest):
            self._send(f"{FOLDER}/{folder}", _piece_name(first), piece, there)
            done += len(piece)
            report(done)
        # The manifest comes last: a folder without one is an upload that was interrupted.
        self._commit(folder, manifest)

    def prune(self, keep: int, best_step: int | None) -> None:
        """Delete old checkpoints and what interrupted uploads have left.

        Args:
            keep: Number of the newest whole ones to keep, at least 1.
            best_step: The step of one more that is kept.
        """
        whole = self.whole()
        kept = [*whole[:keep], *(each for each in whole[keep:] if step_of(each) == best_step)]
        # The index first: a reader that trusts it never looks for what is about to be deleted.
        self._record(kept[::-1])
        oldest = min(map(step_of, kept), default=0)
        shown = filter(_is_folder, self._objects.children(FOLDER))
        left = [each for each in shown if step_of(each) < oldest]  # not what another process began
        for folder in dict.fromkeys([*whole, *left]):
            if folder not in kept:
                self._objects.delete(f"{FOLDER}/{folder}/{MANIFEST}")  # it is whole no longer
                self._objects.delete(f"{FOLDER}/{folder}")

    def stream(self, folder: str, manifest: Manifest, report: Report) -> Iterator[bytes]:
        """A checkpoint as `transfer.receive` takes it, which verifies it.

        Raises:
            CheckpointError: A piece is missing, or has another size.
        """
        yield manifest.model_dump_json().encode()
        for first in range(0, parts.num_chunks(manifest.size_bytes), _CHUNKS):
            name = _piece_name(first)
            try:
                piece = self._objects.get(f"{FOLDER}/{folder}/{name}")
            except FileNotFoundError:
                raise CheckpointError(f"{self.location(folder)}/{name} is missing") from None
            start, end = parts.byte_range(range(first, first + _CHUNKS), manifest.size_bytes)
            if len(piece) != end - start:
                raise CheckpointError(
                    f"{self.location(folder)}/{name} has {len(piece)} bytes, not {end - start}"
                )
            for at in range(0, len(piece), PIECE_BYTES):
                yield piece[at : at + PIECE_BYTES]
            report(end)

    def _found(self) -> list[str]:
        """The folders with a manifest, oldest first. The index has the order. A folder that it does
        not name is newer than all others if its step is: its upload was interrupted at the end.
        """
        # Listings may lag, and the index may be of an earlier upload: the manifests decide.
        known = self._index()
        shown = set(filter(_is_folder, self._objects.children(FOLDER))) - set(known)
        last = step_of(known[-1]) if known else -1
        before = sorted((each for each in shown if step_of(each) <= last), key=step_of)
        after = sorted((each for each in shown if step_of(each) > last), key=step_of)
        return [each for each in (*before, *known, *after) if self._has_manifest(each)]

    def _index(self) -> list[str]:
        """The folders that the index names. One that was cut off names none."""
        with suppress(FileNotFoundError, ValueError, TypeError):
            named = json.loads(self._objects.get(INDEX))
            return [each for each in named if isinstance(each, str) and _is_folder(each)]
        return []

    def _record(self, whole: list[str]) -> None:
        self._objects.put(INDEX, json.dumps(whole).encode())
        self._whole = whole

    def _has_manifest(self, folder: str) -> bool:
        return bool(self._objects.size(f"{FOLDER}/{folder}/{MANIFEST}"))

    def _send(self, folder: str, name: str, piece: memoryview, there: set[str]) -> None:
        """Write a piece, unless it is there already."""
        if name not in there or self._objects.size(f"{folder}/{name}") != len(piece):
            self._objects.put(f"{folder}/{name}", piece)

    def _commit(self, folder: str, manifest: Manifest) -> None:
        """Write the manifest of a checkpoint whose pieces are all there."""
        path = f"{FOLDER}/{folder}/{MANIFEST}"
        text = manifest.model_dump_json().encode()
        if not self._objects.put(path, text, new=True) and self._objects.get(path) != text:
            self._objects.put(path, text)  # of a store where a crash has cut it off
        self._record([*(each for each in self.whole()[::-1] if each != folder), folder])


def folder_of(manifest: Manifest) -> str:
    """The folder of a checkpoint in a backup."""
    return f"{names.checkpoint_name(manifest.step)}-{manifest.sha256[:_KEY_DIGITS]}"


def step_of(folder: str) -> int:
    """The step of the checkpoint in a folder."""
    return names.step_of(folder.rpartition("-")[0])


def _is_folder(name: str) -> bool:
    checkpoint, _, key = name.rpartition("-")
    return names.is_checkpoint(checkpoint) and len(key) == _KEY_DIGITS


def _piece_name(first_chunk: int) -> str:
    return f"{first_chunk:08d}"


def _pieces(storage: Storage, name: str, manifest: Manifest) -> Iterator[tuple[int, memoryview]]:
    """The state of a checkpoint as it is stored, in verified pieces, each with its first chunk.

    A piece is to be used before the next one is asked for.
    """
    buffer = memoryview(mmap.mmap(-1, _CHUNKS * parts.CHUNK_BYTES))
    size = manifest.size_bytes

    def memory(start: int, end: int) -> memoryview:
        return buffer[start % len(buffer) :][: end - start]

    reads = (
        read_part(storage, name, manifest, part, memory, cached=False) for part in manifest.parts
    )
    for _, end in chain.from_iterable(reads):
        if end % len(buffer) == 0 or end == size:
            start = (end - 1) // len(buffer) * len(buffer)
            yield start // parts.CHUNK_BYTES, buffer[: end - start]
