"""Uploader: copies what a run leaves behind to a second store while the run trains.

It reads the run directory, as any observer does: no process of the run waits for it or knows of it.
"""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

from holdfast.checkpoint import names
from holdfast.checkpoint.held import held
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.remote.backup import Backup, folder_of, step_of
from holdfast.checkpoint.remote.objects import Objects
from holdfast.checkpoint.store import CheckpointStore
from holdfast.errors import CheckpointError
from holdfast.job.settings import BackupSettings
from holdfast.rundir.follow import JsonTail
from holdfast.rundir.json_lines import EventLog
from holdfast.rundir.run_directory import EVENTS
from holdfast.sinks.backup.run_copy import RunCopy

POLL_S: Final = 0.5
"""Interval at which it looks for new checkpoints."""
MAX_PAUSE_S: Final = 30.0
"""Longest pause after a failure."""
_WRITTEN: Final = ("checkpoint-committed", "checkpoint-collected")
"""Events after which the run directory has another checkpoint."""

_LASTING: Final = (
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    NotADirectoryError,
    IsADirectoryError,
)
_LASTING_NUMBERS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENAMETOOLONG)
"""Errors that a repetition does not change: other OSErrors may pass. ESTALE, of NFS, is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupProgress:
    """Progress of a backup, as the process that copies reports it: a JSON object a line.

    Attributes:
        step: Step of the checkpoint that is copied, or was copied last; None before the first one.
        done_bytes: Size of the part that is copied.
        size_bytes: Size of the checkpoint.
        trouble: Reason why the newest attempt has failed; empty if it has not.
    """

    step: int | None = None
    done_bytes: int = 0
    size_bytes: int = 0
    trouble: str = ""

    def line(self) -> str:
        """The line for it."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, line: str | bytes) -> Self:
        """The progress in a line."""
        return cls(**json.loads(line))


class _Outdated(Exception):
    """The run has ended with a newer checkpoint than the one that is being copied."""


class Uploader:
    """Copies one run.

    Args:
        run_dir: The run's directory.
        reference: Code of its job; see `TrainJob.code_reference`.
        settings: The backup that the job wants.
        objects: The store, at the folder of the run.
        log: The run's log of events.
        tell: Called with each progress.
        await_end: Waits for so many seconds, or until the run has ended; returns whether it has.
    """

    def __init__(
        self,
        run_dir: Path,
        reference: str,
        settings: BackupSettings,
        objects: Objects,
        log: EventLog,
        tell: Callable[[BackupProgress], None],
        await_end: Callable[[float], bool],
    ) -> None:
        self._run_dir = run_dir
        self._reference = reference
        self._settings = settings
        self._log = log
        self._tell = tell
        self._await_end = await_end
        self._url = objects.url
        self._files = RunCopy(objects)
        self._backup = Backup(objects)
        self._store = CheckpointStore.of_run(run_dir)
        self._events = JsonTail(run_dir / EVENTS)
        self._new = set[int]()  # steps of checkpoints since the newest copy
        self._old = set[int]()  # those that were there then
        self._copied: tuple[str, int] | None = None
        self._damaged = set[tuple[str, int]]()
        self._copied_at = -settings.every_s
        self._has_job = False
        self._trouble = ""

    def run(self) -> bool:
        """Copy until the run has ended and its newest checkpoint is copied, which may be never.

        Returns:
            Whether all is copied; False if the store refuses that.
        """
        pause_s = POLL_S
        while True:
            has_ended = self._await_end(pause_s)
            try:
                self._copy_new(has_ended)
            except _Outdated:
                continue
            except OSError as error:
                self._on_failed(str(error))
                lasts = isinstance(error, _LASTING) or error.errno in _LASTING_NUMBERS
                if has_ended and lasts:
                    return False
                pause_s = min(2 * pause_s, MAX_PAUSE_S)
                if has_ended:
                    time.sleep(pause_s)
            else:
                pause_s = POLL_S
                self._trouble = ""
                if has_ended:
                    return True

    def _copy_new(self, is_last: bool) -> None:
        """Copy what is due, if anything is."""
        if not self._has_job:
            self._files.write_job(self._run_dir, self._reference)
            self._has_job = True
        self._new |= {each["step"] for each in self._events() if each["event"] in _WRITTEN}
        self._new |= self._listed() - self._old  # the log may be deleted
        is_due = (
            len(self._new) >= self._settings.every
            and time.monotonic() - self._copied_at >= self._settings.every_s
        )
        if is_due or is_last:
            self._copy_newest()
        if is_last:
            self._files.write_logs(self._run_dir)

    def _copy_newest(self) -> None:
        """Copy the newest checkpoint that is not damaged, unless that was done."""
        for name in self._store.committed():
            try:
                identity = self._identity(name)
                if identity in self._damaged:
                    continue
                if identity != self._copied:
                    self._copy_with_best(name, self._store.manifest(name))
            except FileNotFoundError:
                if name in self._store.committed():
                    raise
                continue  # retention has deleted it
            except CheckpointError as error:
                self._damaged.add(identity)
                self._on_failed(str(error))
                continue
            self._copied, self._old = identity, self._listed()
            self._new.clear()
            return

    def _copy_with_best(self, name: str, manifest: Manifest) -> None:
        """Copy a checkpoint, and before it that of the best evaluation: the newest one of a backup
        is what came last.
        """
        best_step = manifest.best.kept_step
        if best_step is not None and best_step < manifest.step:
            best = names.checkpoint_name(best_step)
            copied = map(step_of, self._backup.whole())
            if best_step not in copied and best in self._store.committed():
                self._copy(best, self._store.manifest(best))
        if folder_of(manifest) not in self._backup.whole():
            self._copy(name, manifest)
            self._backup.prune(self._settings.keep, best_step)
            self._files.write_logs(self._run_dir)

    def _copy(self, name: str, manifest: Manifest) -> None:
        step = manifest.step
        size = manifest.size_bytes
        began = time.monotonic()

        def report(done_bytes: int) -> None:
            self._tell(BackupProgress(step=step, done_bytes=done_bytes, size_bytes=size))
            if self._await_end(0) and self._store.committed()[:1] != [name]:
                raise _Outdated

        report(0)
        with held(self._run_dir, name) as store:
            self._backup.upload(store, name, report)
        if not self._files.has_job():  # the store was emptied
            self._files.forget()
            self._files.write_job(self._run_dir, self._reference)
        self._copied_at = time.monotonic()
        seconds = round(self._copied_at - began, 3)
        self._log.event("backup-completed", step=step, url=self._url, seconds=seconds, bytes=size)

    def _listed(self) -> set[int]:
        """The steps of the checkpoints in the run directory."""
        return set(map(names.step_of, self._store.committed()))

    def _identity(self, name: str) -> tuple[str, int]:
        """Value that tells a checkpoint from another one of the same step."""
        return name, (self._run_dir / "checkpoints" / name).stat().st_ino

    def _on_failed(self, reason: str) -> None:
        if reason != self._trouble:
            self._trouble = reason
            self._log.event("backup-failed", url=self._url, reason=reason)
        self._tell(BackupProgress(trouble=reason))
