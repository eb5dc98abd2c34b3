"""Run: executes a job, with its run directory, signals and sinks. All commands use it.

holdfast train, run, chaos, drill ──▶ run_and_record ──▶ run ──▶ RunSupervisor
job server, benchmarks, tests ──────────────────────────▶
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, TypeVar

from holdfast.api.missing_checkpoint_check import check_newest
from holdfast.checkpoint.store import CheckpointStore
from holdfast.clusters.engines.engine import Engine
from holdfast.core.placement.shares import Share
from holdfast.errors import HoldfastError, JobError
from holdfast.hardware.profile_file import Profiles
from holdfast.job.spec import Job
from holdfast.launch.fork_client import ForkServer
from holdfast.launch.spawn import Spawned
from holdfast.linux.files import replace_synced
from holdfast.linux.lifeline import STOP_SIGNALS
from holdfast.record import registry
from holdfast.record.follower import Follower
from holdfast.record.sink import Ending, Sink
from holdfast.rundir import code_version
from holdfast.rundir.json_lines import EventLog
from holdfast.rundir.run_directory import ARCHIVE, EVENTS, PROFILE, RunDirectory
from holdfast.runs.coordinator_process import CoordinatorProcess
from holdfast.runs.hosts.endpoint import Endpoint, make_secrets, rejoin_hint
from holdfast.runs.hosts.fleet import Fleet
from holdfast.runs.hosts.hosts import Hosts, JoiningHosts, OwnHost
from holdfast.runs.hosts.local import LocalHosts
from holdfast.runs.process_exits import ProcessExits
from holdfast.runs.supervisor import Controls, RunSupervisor
from holdfast.sinks.backup.sink import sinks_of_backup
from holdfast.sinks.callback import Callback, OnEvent
from holdfast.sinks.loss_curve import LossCurve
from holdfast.sinks.notifier import Notifier
from holdfast.sinks.prometheus.address import MetricsAddress
from holdfast.sinks.prometheus.sink import metrics_of_run
from holdfast.sinks.run_files import RunFiles
from holdfast.sinks.tee import Tee
from holdfast.sinks.terminal import Terminal
from holdfast.sinks.trackers.sink import Trackers
from holdfast.tasks import code as code_of_job

Sidecar = Callable[[Path], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """How a run is launched. None of it can change the result.

    Attributes:
        tee: Ranks whose output is shown.
        forks: A fork server to use as long as it lives, or one that is being started for this run
            alone; by default one is started.
        sidecar: Called with the run's directory once it is this run's; the context that it returns
            is open during the run.
        controls: How to end the run.
        on_event: Called in this process with every `Event` of the run.
        code: The job's task, if it comes by value; see `tasks.by_value`.
        endpoint: Where other hosts join, if there are any.
        engine: Places the agents of the run, all of them; None for agents on this host, and those
            that join it.
        queue: Whether the run waits until what it needs is free.
        shares: Of this host, for each worker here; none: workers share all of it.
        has_own_host: Whether this host has an agent where no engine places them.
        profile: What the hosts reach; None for what the run was given before, or measures.
        metrics: Where the run's metrics are served; None: nowhere.
        accept_older: Whether to resume also if the newest checkpoint is gone.
    """

    tee: Collection[int] = ()
    forks: ForkServer | Spawned | None = None
    sidecar: Sidecar = nullcontext
    controls: Controls = field(default_factory=Controls)
    on_event: OnEvent | None = None
    code: bytes | None = None
    endpoint: Endpoint | None = None
    engine: Engine | None = None
    queue: bool = False
    shares: tuple[Share, ...] = ()
    has_own_host: bool = True
    profile: Profiles | None = None
    metrics: MetricsAddress | None = None
    accept_older: bool = False


class RunResult(Protocol):
    """What a run came to."""

    @property
    def status(self) -> str:
        """How it ended, in a word."""

    @property
    def run_dir(self) -> Path:
        """The run directory."""

    def as_dict(self) -> dict[str, Any]:
        """All of it, as plain data."""


T = TypeVar("T", bound=RunResult)


def run_and_record(
    job: Job,
    path: Path,
    conclude: Callable[[dict[str, Any]], T],
    options: LaunchOptions,
    *,
    resume: bool,
) -> T:
    """Run a job to its end as users see it: shown in the terminal, its result kept and sent.

    Args:
        job: What to do.
        path: The run's directory.
        conclude: Makes the result of what a worker reports.
        options: How to launch it.
        resume: Whether the directory must exist already.

    Raises:
        JobError: The newest checkpoint is gone; see `rolled_back`.
        HoldfastError: See `run`.
        Exception: What the options' `on_event` raised.
    """
    callback = Callback(options.on_event, options.controls.request_stop)
    hint = rejoin_hint(path) if options.endpoint and not options.engine else ""
    terminal = Terminal(Tee(path / "logs", options.tee), path / "logs", hint=hint)
    notifier = Notifier(job, os.environ, path, terminal.print_lines)
    trackers = Trackers(job, os.environ, path, terminal.print_lines)
    controls, tell = options.controls, terminal.print_lines
    backup = sinks_of_backup(job, path, os.environ, tell, lambda: controls.abort)
    sinks = (terminal, RunFiles(path), LossCurve(path), notifier, callback, trackers, *backup)
    ending: Ending | None = None
    with (
        RunDirectory(path, job, resume=resume) as directory,
        metrics_of_run(options.metrics, path, job, terminal.print_lines) as counting,
    ):
        if resume and not options.accept_older:
            check_newest(path)
        with suppress(OSError):  # no run ends because of a list
            registry.add(path, job.name, options.engine.name if options.engine else "local")
        try:
            with options.sidecar(path):
                summary = run(directory, options, (*sinks, *counting))
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


def _close(sink: Sink, ending: Ending | None) -> None:
    try:
        sink.close(ending)
    except OSError as error:  # the weights are safe: the result is worth more than its copy
        print(f"holdfast: the result was not written: {error}", file=sys.stderr)


def run(
    directory: RunDirectory, options: LaunchOptions | None = None, sinks: Sequence[Sink] = ()
) -> dict[str, Any]:
    """Run the job of a directory, from its newest good checkpoint if it has any.

    The signals in STOP_SIGNALS stop it, and abort it when repeated.

    Args:
        directory: The run's directory, held by this process.
        options: How to launch it, as far as it concerns its processes.
        sinks: What the run's progress is shown to; the caller closes them.

    Returns:
        What rank 0 reports: steps, loss, evaluation, throughput, hash of the weights.

    Raises:
        JobError: The job cannot be run.
        WorkerFailed: A worker died or raised.
        HoldfastError: Anything else that ended the run.
    """
    try:
        CheckpointStore.of_run(directory.path).remove_partial()
    except OSError as error:
        raise JobError(
            f"partial checkpoint {error.filename} cannot be removed: {error.strerror}; remove it"
        ) from None
    try:
        follower = Follower(directory, sinks)
        return _run(directory, options or LaunchOptions(), follower)
    except OSError as error:
        if error.filename is None:
            raise
        raise JobError(
            f"{error.filename}: {error.strerror}; fix that, or name another run directory"
        ) from None
    finally:
        with suppress(OSError):  # the next start tries again
            CheckpointStore.of_run(directory.path).remove_partial()


def _run(directory: RunDirectory, options: LaunchOptions, follower: Follower) -> dict[str, Any]:
    for old in directory.path.glob("coordinator.*"):
        old.unlink()  # the journal of an earlier attempt is of no use to this one
    if options.profile is not None:
        profile = options.profile.for_run()
        replace_synced(directory.path / PROFILE, profile.encode())
    code_version.keep(directory.path, code_version.find(directory.job))
    if options.endpoint is not None:
        replace_synced(directory.path / ARCHIVE, code_of_job.pack(directory.job, directory.path))
    what = "after this step" if directory.job.records_progress else "the script"
    with EventLog(directory.path / EVENTS) as log, stopped_by_signals(options.controls, what):
        log.event("run-started", workers=directory.job.workers, pid=os.getpid())
        try:
            with _supervisor(directory, options, follower, log) as supervisor:
                result = supervisor.result()
        except HoldfastError as error:
            log.event("run-failed", error=type(error).__name__, message=str(error))
            raise
        else:
            fields = {key: result[key] for key in ("status", "steps") if key in result}
            log.event("run-ended", **fields)  # a script has no steps
        finally:
            follower.poll()
    return result


@contextmanager
def _supervisor(
    directory: RunDirectory, options: LaunchOptions, follower: Follower, log: EventLog
) -> Iterator[RunSupervisor]:
    """The run's processes, all of which end with the block."""
    exits, attempt = ProcessExits(directory.job, log), secrets.token_hex(4)
    with ExitStack() as owned:
        if options.engine and options.endpoint:
            make_secrets(directory.path, options.endpoint)
        starter = None
        if options.has_own_host and not options.engine:
            starter = _starter(directory, options, attempt, log, exits)
            owned.callback(starter.close)
        coordinator = CoordinatorProcess(
            directory,
            attempt,
            log,
            exits,
            watch=follower.has_sinks,
            public=options.endpoint.public if options.endpoint else "",
            has_own_host=starter is not None,
        )
        owned.callback(coordinator.close)
        if starter is not None:
            hosts: Hosts = OwnHost(starter, coordinator)
        elif options.engine is not None:
            hosts = _fleet(directory, options, coordinator, log)
        else:
            hosts = JoiningHosts(coordinator)
        controls = options.controls
        yield owned.enter_context(
            RunSupervisor(directory, hosts, coordinator, follower, log, controls)
        )


def _starter(
    directory: RunDirectory,
    options: LaunchOptions,
    attempt: str,
    log: EventLog,
    exits: ProcessExits,
) -> LocalHosts:
    """What starts agents on this host."""
    at = options.endpoint
    interface = at.own_interface(directory.path, directory.job) if at else None
    forks, code, shares = options.forks, options.code, options.shares
    return LocalHosts(directory, attempt, log, exits, forks, code, interface, shares)


def _fleet(
    directory: RunDirectory, options: LaunchOptions, coordinator: CoordinatorProcess, log: EventLog
) -> Fleet:
    """The agents that an engine places."""
    assert options.engine is not None
    assert options.endpoint is not None
    public, agents = options.endpoint.public, directory.job.hosts
    return Fleet(options.engine, agents, directory.path, public, coordinator, log)


@contextmanager
def stopped_by_signals(controls: Controls, what: str) -> Iterator[None]:
    """Stop a run by the signals in STOP_SIGNALS, and abort it when they are repeated.

    Args:
        controls: The run's.
        what: What stops, for the person who has sent the signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return

    def stop(number: int, _frame: FrameType | None) -> None:
        controls.interrupted = number == signal.SIGINT
        controls.abort = controls.stop
        controls.stop = True
        with suppress(OSError):  # the reader may have got the same signal
            os.write(
                2, f"stopping {what}; once more to abort\n".encode()
            )  # print may be interrupted

    before = {number: signal.signal(number, stop) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
