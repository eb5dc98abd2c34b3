"""Find: the checkpoints at a path that a user names, and their manifests. Knows no torch."""

from __future__ import annotations

from pathlib import Path

from holdfast.checkpoint import names
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.sealing.keys import encryption_key
from holdfast.checkpoint.sealing.seal import UNSEALED, Seal
from holdfast.checkpoint.storage import Storage
from holdfast.checkpoint.store import MANIFEST, CheckpointStore
from holdfast.errors import CheckpointError, JobError
from holdfast.job import JOB_FILE
from holdfast.job.load import of_run


def find_checkpoint(path: Path, *, best: bool = False) -> Path:
    """The checkpoint at `path`: itself, or the newest one of the run whose directory it is.

    Args:
        path: A checkpoint, or a run directory.
        best: True to take the checkpoint of the run's best evaluation instead.

    Raises:
        JobError: There is none.
        CheckpointError: The storage cannot be read now.
    """
    if (path / MANIFEST).exists():
        return path.absolute() if not path.name else path
    store = CheckpointStore.of_run(path)
    try:
        newest = store.newest() if path.is_dir() else None
        if newest is None:
            raise _none_at(path)
        if not best:
            return Path(store.location(newest.name))
        found = store.manifest(newest.name).best
    except OSError as error:
        raise _unreadable(error, path) from None
    if found.value is None:
        raise JobError(
            f"{path} has no best checkpoint; its job must name a metric: evaluation.best"
        )
    return Path(store.location(names.checkpoint_name(found.step)))


def checkpoints_at(path: Path) -> tuple[CheckpointStore, list[str]]:
    """The checkpoints at `path`, damaged or not: itself, or all of the run, newest first.

    Args:
        path: A checkpoint, or a run directory.

    Raises:
        JobError: There is none.
    """
    whole = path.absolute()
    if names.is_quarantined(whole.name):
        raise JobError(
            f"{path} is quarantined: it was rejected before; holdfast events says why, and nothing "
            "loads it"
        )
    if names.is_checkpoint(whole.name) and path.is_dir():
        return store_of(path), [whole.name]
    store = CheckpointStore.of_run(path)
    found = store.committed()
    if not found:
        raise _none_at(path)
    return store, found


def store_of(checkpoint: Path, seal: Seal = UNSEALED) -> CheckpointStore:
    """The store that has a checkpoint, by its directory."""
    return CheckpointStore(Storage(checkpoint.parent), seal)


def manifest_of(checkpoint: Path) -> Manifest:
    """The manifest of a checkpoint, by its directory.

    Raises:
        CheckpointError: It is damaged, or cannot be read now.
    """
    try:
        return store_of(checkpoint).manifest(checkpoint.name)
    except OSError as error:
        raise _unreadable(error, checkpoint) from None


def _unreadable(error: OSError, path: Path) -> CheckpointError:
    return CheckpointError(
        f"{error.filename or path} cannot be read: {error.strerror or error}; see whether its "
        "storage is mounted, and who owns it"
    )


def _none_at(path: Path) -> JobError:
    return JobError(f"{path} is neither a checkpoint nor the directory of a run that has one")


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
