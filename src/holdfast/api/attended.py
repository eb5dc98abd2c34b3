"""Attended runs: a run as users see it, shown in the terminal, with its result kept and sent."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from holdfast.api.result import RunResult
from holdfast.checkpoint import names
from holdfast.checkpoint.recorded import missing_checkpoint
from holdfast.checkpoint.store import CheckpointStore
from holdfast.errors import HoldfastError, JobError
from holdfast.job.spec import Job
from holdfast.record import registry
from holdfast.record.sink import Ending, Sink
from holdfast.rundir import json_lines
from holdfast.rundir.run_directory import EVENTS, RunDirectory, log_event
from holdfast.runs.controls import Controls
from holdfast.runs.hosts.endpoint import rejoin_hint
from holdfast.runs.hosts.placement import Placement
from holdfast.runs.run import LaunchOptions, run
from holdfast.sinks.backup.backup_sink import BackupSink
from holdfast.sinks.callback import Callback, OnEvent
from holdfast.sinks.notifier import Notifier
from holdfast.sinks.prometheus.address import MetricsAddress
from holdfast.sinks.prometheus.served_metrics import metrics_of_run
from holdfast.sinks.run_files import RunFiles
from holdfast.sinks.tee import Tee
from holdfast.sinks.terminal import Terminal
from holdfast.sinks.trackers.tracker_sink import Trackers

Sidecar = Callable[[Path], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attendance:
    """Watchers of a run. None of it can change the result.

    Attributes:
        tee: Ranks whose output is shown.
        on_event: Called in this process with every `Event` of the run.
        metrics: Address at which its metrics are served; None: nowhere.
        is_listed: True if `holdfast runs` lists the run.
        sidecar: Called with the run's directory once it is this run's; the context that it returns
            is open during the run.
    """

    tee: Collection[int] = ()
    on_event: OnEvent | None = None
    metrics: MetricsAddress | None = None
    is_listed: bool = True
    sidecar: Sidecar = nullcontext


UNATTENDED: Final = Attendance()
"""A run that only the terminal shows."""


T = TypeVar("T", bound=RunResult)


def attend(
    job: Job,
    path: Path,
    conclude: Callable[[dict[str, Any]], T],
    options: LaunchOptions,
    placement: Placement,
    attendance: Attendance,
    *,
    resume: bool,
    accept_older: bool = False,
) -> T:
    """Run a job to its end, with everyone who watches it.

    Args:
        job: The job.
        path: Directory of the run.
        conclude: Makes the result of the summary that a worker reports.
        options: Options to start and end its processes.
        placement: The hosts of the run.
        attendance: Watchers of the run.
        resume: True if the directory must exist already.
        accept_older: True to resume also if the newest checkpoint is gone.

    Raises:
        JobError: The newest checkpoint is gone; see `check_newest`.
        HoldfastError: See `run`.
        Exception: What `on_event` raised.
    """
    callback = Callback(attendance.on_event, options.controls.request_stop)
    hint = rejoin_hint(path) if placement.endpoint and not placement.engine else ""
    tee = Tee(path / "logs", attendance.tee)
    terminal = Terminal(tee, path / "logs", hint=hint, tokens_per_sample=job.tokens_per_sample)
    sinks = sinks_of(job, path, terminal, callback, options.controls)
    ending: Ending | None = None
    with (
        RunDirectory(path, job, resume=resume) as directory,
        metrics_of_run(attendance.metrics, path, job, terminal.print_lines) as counting,
    ):
        if resume and accept_older:
            accept_older_checkpoint(path)
        elif resume:
            check_newest(path)
        if attendance.is_listed:
            with suppress(OSError):  # no run ends because of a list
                registry.add(path, job.name, placement.engine.name if placement.engine else "local")
        try:
            with attendance.sidecar(path):
                summary = run(directory, options, (*sinks, *counting), placement=placement)
                result = conclude(summary)
                ending = Ending(status=result.status, result=result.as_dict())
        except HoldfastError as error:  # of the sidecar, where there is a result
            ending = ending or Ending(status="failed", error=str(error))
            raise
        finally:
            for sink in sinks:
                _close(sink, ending)
            callback.raise_error()
    return result


def sinks_of(
    job: Job, path: Path, terminal: Terminal, callback: Callback, controls: Controls
) -> tuple[Sink, ...]:
    """All sinks of a run that its job and its caller ask for.

    Raises:
        JobError: A tracker, a notification or a backup cannot be used.
    """
    tell = terminal.print_lines
    backup = None
    if job.backup is not None:
        backup = BackupSink(job.backup, os.environ, path, tell, lambda: controls.abort)
    return (
        terminal,
        RunFiles(path),
        Notifier(job.name, job.notify, os.environ, path, tell),
        callback,
        Trackers(job, os.environ, path, tell),
        *([] if backup is None else [backup]),
    )


def _close(sink: Sink, ending: Ending | None) -> None:
    try:
        sink.close(ending)
    except OSError as error:  # the weights are safe: the result is worth more than its copy
        print(f"holdfast: the result was not written: {error}", file=sys.stderr)


def check_newest(run_dir: Path) -> None:
    """Check, before a run is resumed, that its directory still has the newest checkpoint.

    A checkpoint vanishes if someone deletes it, if its storage is not mounted, or if its directory
    is replaced by an older copy. To resume from an older one then would silently repeat work, or
    undo what was meant to last. Damage is another matter: the run resumes by itself.

    Raises:
        JobError: It has an older one, or none, or cannot be read.
    """
    store = CheckpointStore.of_run(run_dir)
    try:
        missing = missing_checkpoint(store, json_lines.read(run_dir / EVENTS))
    except OSError as error:
        raise _unreadable(error, store) from error
    if missing is None:
        return
    if missing.newest_step is None:
        now = "it has none now"
        otherwise = "begin from nothing"
    else:
        now = f"its newest one is of step {missing.newest_step} now"
        otherwise = "resume from that"
    raise JobError(
        f"{run_dir} has lost the checkpoint of step {missing.step}, which was committed at "
        f"{missing.when}; {now}. Its storage is not mounted, its directory was replaced by an "
        "older copy, or the checkpoint was deleted. Bring it back to "
        f"{store.location(names.checkpoint_name(missing.step))}, or {otherwise}: --accept-older "
        "(accept_older=True in Python)"
    )


def accept_older_checkpoint(run_dir: Path) -> None:
    """Note in the record of a run that it is resumed from what its directory has now.

    Raises:
        JobError: The directory cannot be read.
    """
    store = CheckpointStore.of_run(run_dir)
    try:
        committed = store.committed()
    except OSError as error:
        raise _unreadable(error, store) from error
    step = names.step_of(committed[0]) if committed else 0
    log_event(run_dir, "older-accepted", step=step)


def _unreadable(error: OSError, store: CheckpointStore) -> JobError:
    return JobError(
        f"{error.filename or store.location('')} cannot be read: {error.strerror or error}; make "
        "the storage readable, then resume the run"
    )
