"""Unlock: opens a checkpoint with the key that its run's job names. Knows no torch."""

from __future__ import annotations

from pathlib import Path

from holdfast.checkpoint.find import store_of
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.sealing.keys import encryption_key
from holdfast.checkpoint.sealing.seal import UNSEALED, Seal
from holdfast.checkpoint.store import CheckpointStore
from holdfast.job import JOB_FILE
from holdfast.job.load import of_run


def unlocked(checkpoint: Path, manifest: Manifest, key: Path | None = None) -> CheckpointStore:
    """The store of a checkpoint, with its key if it is encrypted.

    Args:
        checkpoint: The directory of the checkpoint.
        manifest: Its manifest.
        key: The file with the key; by default, the one that the job of its run names. Without
            either, `read_state` says which key is missing.

    Raises:
        JobError: The file cannot be read, or holds no key; or the job of the run cannot be read.
    """
    return store_of(checkpoint, _seal(checkpoint, manifest, key))


def _seal(checkpoint: Path, manifest: Manifest, key: Path | None) -> Seal:
    if all(part.encryption is None for part in manifest.parts):
        return UNSEALED
    run = checkpoint.absolute().parent.parent
    if key is None and (run / JOB_FILE).exists():
        key = of_run(run).checkpoint.encrypt
    return UNSEALED if key is None else Seal(encryption=encryption_key(key))
