"""Store: the checkpoints of one run, whatever storage they are kept in.

The one place that lists checkpoints, reads manifests, publishes, deletes and quarantines.

    runs/digits/checkpoints/
      step-00000200/
        part-0-of-1.safetensors
        manifest.json
      latest                      a hint for people; nothing reads it
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Final, Self

from holdfast.checkpoint import names
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.sealing.seal import UNSEALED, Seal
from holdfast.checkpoint.storage import Storage
from holdfast.core.protocol import StoredCheckpoint
from holdfast.errors import CheckpointError

MANIFEST: Final = "manifest.json"
_PIN: Final = "pin"
"""The file of a pin; it is empty."""


class CheckpointStore:
    """The checkpoints of one run. Every method raises OSError if the storage cannot be reached.

    Args:
        storage: Storage that keeps them.
        seal: The keys to sign and encrypt them with; by default none, which is enough for all but
            writing them and reading their state.
    """

    def __init__(self, storage: Storage, seal: Seal = UNSEALED) -> None:
        self.storage = storage
        self.seal = seal

    @classmethod
    def of_run(cls, run_dir: Path, seal: Seal = UNSEALED) -> Self:
        """The checkpoints in a run's directory."""
        return cls(Storage(run_dir / "checkpoints"), seal)

    def committed(self) -> list[str]:
        """The names of all that claim to be checkpoints, newest first."""
        return sorted(filter(names.is_checkpoint, self.storage.names()), key=names.step_of)[::-1]

    def newest(self) -> StoredCheckpoint | None:
        """The newest checkpoint whose manifest verifies; None if there is none.

        Raises:
            OSError: The storage cannot be reached, or a manifest cannot be read now. It may be
                the newest one, so an older one is no answer.
        """
        for name in self.committed():
            with contextlib.suppress(CheckpointError):
                return StoredCheckpoint(step=self.manifest(name).step, name=name)
        return None

    def location(self, name: str) -> str:
        """Location of a checkpoint, for people."""
        return self.storage.location(name)

    def manifest(self, name: str) -> Manifest:
        """The manifest of a checkpoint, checked as far as possible without reading the parts.

        Raises:
            CheckpointError: It is missing or contradicts itself or the files, or it is not signed
                as it should be.
            OSError: It cannot be read now, or the checkpoint is not there.
        """
        where = self.location(name)
        size = self._size(name, MANIFEST)
        if size is None:
            raise CheckpointError(f"{where}/{MANIFEST} is missing, or is not a file")
        text = bytearray(size)
        self.storage.read(name, MANIFEST, 0, memoryview(text))
        # First that it is whole, then who signed it, then that it belongs here, with its files.
        manifest = Manifest.parse(bytes(text), f"{where}/{MANIFEST}")
        self.seal.check_signature(manifest, f"{where}/{MANIFEST}")
        if names.checkpoint_name(manifest.step) != name:
            raise CheckpointError(f"{where} holds the checkpoint of step {manifest.step}")
        for part in manifest.parts:
            size = self._size(name, part.file)
            if size != part.size_bytes:
                has = "is missing" if size is None else f"has {size} bytes"
                raise CheckpointError(f"{where}/{part.file} {has}, not {part.size_bytes} bytes")
        return manifest

    def _size(self, name: str, file: str) -> int | None:
        """The size of a file of a checkpoint; None if that file is missing.

        Raises:
            FileNotFoundError: All of the checkpoint is.
        """
        size = self.storage.size(name, file)
        if size is not None:
            return size
        if name not in self.storage.names():
            where = self.location(name)
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), where)
        return self.storage.size(name, file)  # all of it may have come back before it was listed

    def prepare(self, manifest: Manifest, attempt: str) -> None:
        """Add the manifest to the draft of an attempt."""
        text = manifest.sealed().model_dump_json(indent=1)
        draft = names.draft_name(manifest.step, attempt)
        self.storage.write_synced(draft, MANIFEST, [text.encode()])

    def publish(self, step: int, attempt: str) -> str:
        """Make the draft of an attempt, with its manifest, a checkpoint, in place of another one
        of the same step; returns its name. If that fails, the draft remains.
        """
        name = names.checkpoint_name(step)
        draft = names.draft_name(step, attempt)
        replaced = names.replaced_name(name)
        # Between the two renames the name is free: `remove_partial` brings the old one back then.
        replaces = name in self.storage.names()
        if replaces:
            self.storage.rename(name, replaced)
        self.storage.publish(draft, name)
        if replaces:
            self.storage.delete(replaced)
        return name

    def delete(self, name: str) -> None:
        """Delete a checkpoint, unless it was pinned meanwhile.

        It loses its name first, so a crash never leaves half of one.
        """
        deleted = names.deleted_name(name)
        # Under the new name no run resumes from it, whatever of its files is deleted.
        self.storage.rename(name, deleted)
        if name in self.pinned():  # `pin` looks for the name after it has written the pin
            self.storage.rename(deleted, name)
        else:
            self.storage.delete(deleted)

    def pinned(self) -> frozenset[str]:
        """The names of the checkpoints that are never deleted; not all of them need be there."""
        return frozenset(filter(None, map(names.pinned, self.storage.names())))

    def pin(self, name: str) -> None:
        """Have a checkpoint never deleted, durably, also while a run is live.

        Raises:
            CheckpointError: There is no such checkpoint, or it has just been deleted.
        """
        pin = names.pin_name(name)
        draft = names.pin_draft_name(name)
        # First the pin, then the look; `delete` does the opposite, so one of them sees the other.
        is_new = pin not in self.storage.names()
        if is_new:
            self.storage.write_synced(draft, _PIN, [])
            self.storage.publish(draft, pin)
        if name not in self.committed():
            if is_new:
                self.unpin(name)
            raise CheckpointError(f"{self.location(name)} is no checkpoint, or was just deleted")

    def unpin(self, name: str) -> None:
        """Let retention delete a checkpoint again."""
        with contextlib.suppress(FileNotFoundError):
            self.storage.delete(names.pin_name(name))

    def discard(self, step: int, attempt: str) -> None:
        """Delete the draft of an attempt."""
        self.storage.delete(names.draft_name(step, attempt))

    def quarantine(self, name: str) -> str:
        """Rename a checkpoint so that no run resumes from it; returns its new name.

        Raises:
            CheckpointError: There are too many of them.
            FileNotFoundError: There is no such checkpoint.
        """
        # It is kept for people to look at; its name is none that a run resumes from.
        taken = set(self.storage.names())
        for free in names.quarantine_names(name):
            if free not in taken:
                self.storage.rename(name, free)
                return free
        raise CheckpointError(
            f"{self.location(name)} has {names.MAX_QUARANTINED} quarantined copies; remove some"
        )

    def remove_partial(self, current: str = "") -> None:
        """Delete what interrupted writes and deletions have left, and bring back a checkpoint whose
        replacement was not published, or that was pinned while it was about to be deleted.

        Args:
            current: The attempt whose drafts may still be written to.
        """
        for name in filter(names.is_partial, self.storage.names()):
            if not names.is_draft_of(name, current) and not self._brought_back(name):
                self.storage.delete(name)

    def _brought_back(self, partial: str) -> bool:
        name = names.renamed_from(partial)
        if name is None or name in self.storage.names():
            return False
        if partial == names.deleted_name(name) and name not in self.pinned():
            return False
        # The manifest can only be checked under the name that it states.
        self.storage.rename(partial, name)
        try:
            self.manifest(name)
        except CheckpointError:
            self.storage.rename(name, partial)
            return False
        return True
