"""Run: executes the job of a run directory. All commands use it.

holdfast train, run, chaos, drill ──▶ api ──▶ run ──▶ RunSupervisor
job server, benchmarks, tests ─────────────▶
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.checkpoint.store import CheckpointStore
from holdfast.errors import HoldfastError, JobError
from holdfast.launch.fork_client import ForkServer
from holdfast.launch.spawn import Spawned
from holdfast.linux.files import replace_synced
from holdfast.record.follower import Follower
from holdfast.record.sink import Sink
from holdfast.rundir import code_version
from holdfast.rundir.json_lines import EventLog
from holdfast.rundir.run_directory import ARCHIVE, EVENTS, PROFILE, RunDirectory
from holdfast.runs.controls import Controls, stopped_by_signals
from holdfast.runs.coordinator_process import CoordinatorProcess, Joining
from holdfast.runs.hosts.endpoint import Endpoint, make_secrets
from holdfast.runs.hosts.hosts import Hosts, JoiningHosts
from holdfast.runs.hosts.local import LocalHosts, OwnHost
from holdfast.runs.hosts.placement import THIS_HOST, Placement
from holdfast.runs.process_exits import ProcessExits
from holdfast.runs.supervisor import RunSupervisor
from holdfast.tasks import code as code_of_job

if TYPE_CHECKING:
    from holdfast.clusters.engines.engine import Engine
    from holdfast.runs.hosts.fleet import Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """Options to start and end the processes of a run. None of them can change the result.

    Attributes:
        forks: A fork server to use as long as it lives, or one that is being started for this run
            alone; by default one is started.
        code: The job's task, if it comes by value; see `tasks.by_value`.
        controls: Requests to end the run.
    """

    forks: ForkServer | Spawned | None = None
    code: bytes | None = None
    controls: Controls = field(default_factory=Controls)


def run(
    directory: RunDirectory,
    options: LaunchOptions | None = None,
    sinks: Sequence[Sink] = (),
    *,
    placement: Placement = THIS_HOST,
) -> dict[str, Any]:
    """Run the job of a directory, from its newest good checkpoint if it has any.

    The signals in STOP_SIGNALS stop it, and abort it when repeated.

    Args:
        directory: The run's directory, held by this process.
        options: Options to start and end its processes.
        sinks: Receive the run's progress; the caller closes them.
        placement: The hosts of the run.

    Returns:
        What rank 0 reports: steps, loss, evaluation, throughput, hash of the weights.

    Raises:
        JobError: The job cannot be run.
        WorkerFailed: A worker died or raised.
        HoldfastError: Anything else that ended the run.
    """
    # Of an earlier start: this process holds the directory, so nothing writes to them any more.
    try:
        CheckpointStore.of_run(directory.path).remove_partial()
    except OSError as error:
        raise JobError(
            f"partial checkpoints cannot be removed: {error.filename}: {error.strerror}; make the "
            "storage readable and writable, then resume the run"
        ) from None
    try:
        follower = Follower(directory, sinks)
        return _run(directory, options or LaunchOptions(), placement, follower)
    except OSError as error:
        if error.filename is None:
            raise
        raise JobError(
            f"{error.filename}: {error.strerror}; fix that, or name another run directory"
        ) from None
    finally:
        with suppress(OSError):  # the next start tries again
            CheckpointStore.of_run(directory.path).remove_partial()


def _run(
    directory: RunDirectory, options: LaunchOptions, placement: Placement, follower: Follower
) -> dict[str, Any]:
    for old in directory.path.glob("coordinator.*"):
        old.unlink()  # the journal of an earlier attempt is of no use to this one
    if placement.profile is not None:
        profile = placement.profile.for_run()
        replace_synced(directory.path / PROFILE, profile.encode())
    code_version.keep(directory.path, code_version.find(directory.job.code_file))
    if placement.endpoint is not None:
        packed = code_of_job.pack(directory.job.code_reference, directory.path)
        replace_synced(directory.path / ARCHIVE, packed)
    what = "after this step" if directory.job.records_progress else "the script"
    with EventLog(directory.path / EVENTS) as log, stopped_by_signals(options.controls, what):
        log.event("run-started", workers=directory.job.workers, pid=os.getpid())
        try:
            with _supervisor(directory, options, placement, follower, log) as supervisor:
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
    directory: RunDirectory,
    options: LaunchOptions,
    placement: Placement,
    follower: Follower,
    log: EventLog,
) -> Iterator[RunSupervisor]:
    """The run's processes, all of which end with the block."""
    exits = ProcessExits(directory.job.restarts, log)
    attempt = secrets.token_hex(4)
    with ExitStack() as owned:
        if placement.engine and placement.endpoint:
            make_secrets(directory.path, placement.endpoint)
        joining = _joining(directory, placement, attempt, owned)
        # Importing torch takes longest, so the fork server starts before the coordinator.
        starter = None
        if placement.has_own_host and not placement.engine:
            node = joining.node.name if joining is not None and joining.moves else ""
            starter = _starter(directory, options, placement, attempt, log, exits, node)
            owned.callback(starter.close)
        coordinator = CoordinatorProcess(
            directory,
            attempt,
            log,
            exits,
            watch=follower.has_sinks,
            forks=options.forks,
            joining=joining,
        )
        owned.callback(coordinator.close)
        if starter is not None:
            hosts: Hosts = OwnHost(starter, coordinator)
        elif placement.engine is not None:
            hosts = _fleet(directory, placement.engine, placement.endpoint, coordinator, log)
        else:
            hosts = JoiningHosts(coordinator)
        yield owned.enter_context(
            RunSupervisor(directory, hosts, coordinator, follower, log, options.controls)
        )


def _joining(
    directory: RunDirectory, placement: Placement, attempt: str, owned: ExitStack
) -> Joining | None:
    """Terms on which other hosts take part; None if the run has one host."""
    endpoint = placement.endpoint
    if endpoint is None:
        return None
    hosts = directory.job.most_hosts
    has_agent = placement.has_own_host and not placement.engine
    # Without an agent here the coordinator never moves, so its own host keeps the journal.
    etcd = directory.job.etcd if has_agent else None
    node = endpoint.first_node(directory.path, attempt, etcd)
    owned.callback(node.close)
    # An agent that an engine places may have its successor next to it.
    return Joining(
        node=node,
        address=endpoint.public,
        limit=hosts - 1 if has_agent else 2 * hosts,
        collects=not has_agent,
        # Without an agent here, whatever has started this command starts it again.
        moves=has_agent,
    )


def _starter(
    directory: RunDirectory,
    options: LaunchOptions,
    placement: Placement,
    attempt: str,
    log: EventLog,
    exits: ProcessExits,
    node: str,
) -> LocalHosts:
    """Starts agents on this host."""
    interface = None
    if placement.endpoint is not None:
        interface = placement.endpoint.own_interface(directory.path, directory.job.network)
    return LocalHosts(
        directory,
        attempt,
        log,
        exits,
        options.forks,
        options.code,
        interface,
        placement.shares,
        node,
    )


def _fleet(
    directory: RunDirectory,
    engine: Engine,
    endpoint: Endpoint | None,
    coordinator: CoordinatorProcess,
    log: EventLog,
) -> Fleet:
    """The agents that an engine places."""
    from holdfast.runs.hosts.fleet import Fleet

    assert endpoint is not None, "agents of an engine join somewhere"
    agents = directory.job.most_hosts
    return Fleet(engine, agents, directory.path, endpoint.public, coordinator, log)
