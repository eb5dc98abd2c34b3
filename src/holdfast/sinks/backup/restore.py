"""Restore: makes a run directory of the backup of a run, from which the run is resumed.

All of it is fetched into a draft next to the directory, which gets its name once it is whole.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.remote.backup import INDEX, Backup, step_of
from holdfast.checkpoint.remote.objects import Objects
from holdfast.checkpoint.remote.open import open_store
from holdfast.checkpoint.sealing.seal import UNSEALED, Seal
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.transfer import described, receive
from holdfast.errors import CheckpointError, JobError
from holdfast.job import JOB_FILE
from holdfast.job.settings import CheckpointSettings
from holdfast.linux.files import sync_directory
from holdfast.rundir.run_directory import log_event, new_run
from holdfast.sinks.backup.run_copy import RunCopy
from holdfast.sinks.transfers import TransferView

MAX_NAMED: Final = 5
"""Most runs that a message names."""
_ATTEMPT: Final = "0"

Say = Callable[[str], None]
"""Called with a line for people."""


def restore(url: str, run_dir: Path | None, environment: Mapping[str, str], say: Say) -> Path:
    """Make a run directory of a backup: job, sources, logs, and its newest checkpoint that is not
    damaged.

    Args:
        url: The folder of a run, or the one above it if that has one run only.
        run_dir: The directory; None for a new one in `runs/`. If this raises, there is none.
        environment: Variables of the process.
        say: Told what is damaged.

    Returns:
        The run directory.

    Raises:
        JobError: There is no such store or backup, or the directory is not empty.
        CheckpointError: No checkpoint in it is whole.
    """
    try:
        objects = _of_run(url, environment)
        job = RunCopy(objects).job()
        path = run_dir or new_run(job.name)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise JobError(
                f"{path} is not empty; continue the run in it without --from, or name another "
                "directory by --run"
            )
        with _draft_of(path) as draft:
            _fill(draft, objects, _seal_of(job.checkpoint, say), say)
    except OSError as error:
        reason = str(error) if url in str(error) else f"{url}: {error}"
        raise JobError(f"the backup cannot be fetched: {reason}") from None
    return path


def _of_run(url: str, environment: Mapping[str, str]) -> Objects:
    """The store at the folder of the run that `url` names."""
    objects = open_store(url, environment)
    if objects.size(JOB_FILE) is not None:
        return objects
    names = sorted(objects.children(""))
    begun = [each for each in names if objects.size(f"{each}/{JOB_FILE}") is not None]
    runs = [each for each in begun if objects.size(f"{each}/{INDEX}") is not None] or begun
    if not runs:
        raise JobError(f"{url} has no backup of a run; name a folder that backup.to has named")
    if len(runs) > 1:
        more = f" and {len(runs) - MAX_NAMED} more" if len(runs) > MAX_NAMED else ""
        raise JobError(
            f"{url} has backups of {len(runs)} runs; add the name of one to it: "
            f"{', '.join(runs[:MAX_NAMED])}{more}"
        )
    return open_store(f"{url.rstrip('/')}/{runs[0]}", environment)


@contextmanager
def _draft_of(path: Path) -> Iterator[Path]:
    """A directory that becomes `path` if the block succeeds, and is removed if not."""
    draft = path.with_name(f".{path.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)  # of a command that was killed
    try:
        (draft / "checkpoints").mkdir(parents=True)
        yield draft
        draft.rename(path)
        sync_directory(path.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _seal_of(settings: CheckpointSettings, say: Say) -> Seal:
    """Seal that checks the signatures of checkpoints; workers check them again on loading."""
    try:
        return Seal.of(settings)
    except JobError as error:
        say(f"holdfast: signatures are not checked yet: {error}")
    return UNSEALED


def _fill(draft: Path, objects: Objects, seal: Seal, say: Say) -> None:
    """Fetch a run into an empty directory."""
    began = time.monotonic()
    backup = Backup(objects)
    store = CheckpointStore.of_run(draft, seal)
    with TransferView() as view:
        newest = _newest(backup, store, view, say)
        best_step = newest.best.step if newest.best.value is not None else newest.step
        others = [each for each in backup.whole() if step_of(each) == best_step != newest.step]
        for folder in others[:1]:
            try:
                _receive(backup, folder, store, view)
            except CheckpointError as error:
                say(f"holdfast: the checkpoint of the best evaluation is damaged: {error}")
    RunCopy(objects).read(draft)
    seconds = round(time.monotonic() - began, 3)
    log_event(draft, "run-restored", url=objects.url, step=newest.step, seconds=seconds)


def _newest(backup: Backup, store: CheckpointStore, view: TransferView, say: Say) -> Manifest:
    """Fetch the newest checkpoint that is not damaged; returns its manifest."""
    whole = backup.whole()
    for folder in whole:
        try:
            return _receive(backup, folder, store, view)
        except CheckpointError as error:
            say(f"holdfast: a checkpoint in the backup is damaged: {error}")
    what = "all checkpoints in it are damaged" if whole else "it has no whole checkpoint"
    raise CheckpointError(f"{backup.url} cannot be restored: {what}; name another backup")


def _receive(backup: Backup, folder: str, store: CheckpointStore, view: TransferView) -> Manifest:
    """Fetch a checkpoint; if it is damaged, nothing of it is left."""
    manifest = backup.manifest(folder)
    where = backup.location(folder)
    store.seal.check_signature(manifest, where)
    what = f"fetching {where}"

    def report(done_bytes: int) -> None:
        view.report(what, done_bytes, manifest.size_bytes)

    report(0)
    try:
        receive(store, _ATTEMPT, backup.stream(folder, manifest, report), described(manifest))
    except CheckpointError as error:
        reason = str(error)
        raise CheckpointError(reason if where in reason else f"{where}: {reason}") from None
    return manifest
