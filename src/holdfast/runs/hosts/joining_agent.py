"""Joined: an agent and its workers for a run that another host has started.

join ─▶ agent, workers ─▶ the run is over, or this host was taken for lost ─▶ join again
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final, TypeAlias

from holdfast.checkpoint.sealing.seal import Seal
from holdfast.clusters.engines.engine import OVER, TAKEN_AWAY, begin, read_token, tell_engine
from holdfast.clusters.engines.kubernetes.trainjob_status import TrainerServer, TrainJobStatus
from holdfast.core.placement.replacing import RejoinDelay
from holdfast.core.placement.shares import Share
from holdfast.errors import HoldfastError, Interrupted, JobError, ProtocolError
from holdfast.hardware.profile_file import Profiles
from holdfast.job import JOB_FILE, load
from holdfast.launch.fork_client import ForkServer
from holdfast.launch.spawn import Spawned
from holdfast.linux.files import replace_synced
from holdfast.linux.lifeline import active_stop_signals, handling
from holdfast.rundir import code_version
from holdfast.rundir.follow import StepCursor, StepTail, end_of
from holdfast.rundir.json_lines import EventLog
from holdfast.rundir.run_directory import (
    EVENTS,
    METRICS,
    PROFILE,
    RUNS,
    InUse,
    RunDirectory,
    placed_directory,
)
from holdfast.runs.hosts.checkpoint_fetch import provide
from holdfast.runs.hosts.collector import Collector
from holdfast.runs.hosts.endpoint import Interface, address_towards
from holdfast.runs.hosts.host_claims import LOOK_S, claimed_shares
from holdfast.runs.hosts.hosts import HostState
from holdfast.runs.hosts.local import LocalHost, LocalHosts
from holdfast.runs.hosts.shipper import Cursors, Shipper, ends_of
from holdfast.runs.process_exits import ProcessExits
from holdfast.runs.run_fork_server import fork_server
from holdfast.tasks import code
from holdfast.wire.join import Joined, NoRun, control_address, fetch_job, join
from holdfast.wire.rpc import JobMessage
from holdfast.wire.tls import HostCredentials

Say: TypeAlias = Callable[[str], None]
Serving: TypeAlias = Callable[[Path, Say], AbstractContextManager[None]]
"""Serves the metrics of a run directory of this host while its context is open."""

JOIN_TIMEOUT_S: Final = 60.0
"""How long to wait for a coordinator at first."""
PLACED_TIMEOUT_S: Final = 20.0
"""The same if an engine has placed the agent: its coordinator is there. The agent then ends early,
so that a run whose coordinator cannot be reached says that, and ends.
"""
REJOIN_TIMEOUT_S: Final = 5.0
"""How long to wait for it once the agent has ended: the run may be over."""
CLAIM_TIMEOUT_S: Final = 15.0
"""How long an agent that an engine has placed waits for what other runs use."""
TICK_S: Final = 0.1
HELD_TIMEOUT_S: Final = 660.0
"""How long to wait for a run directory that another agent holds: one without a coordinator ends
within ten minutes.
"""
_HELD: Final = (
    "An agent of an earlier start of the run ends ten minutes after its coordinator, or when you "
    "end it; this one waits for that"
)
_ENDED: Final = "the agent was ended; the run continues without this host"


def serve(
    coordinator: str,
    token_file: Path | None,
    say: Say,
    address: str = "",
    run_dir: Path | None = None,
    *,
    placed: str = "",
    spawned: Spawned | None = None,
    profile: Profiles | None = None,
    serving: Serving | None = None,
) -> None:
    """Work for a run until it is over.

    Args:
        coordinator: Its address and port.
        token_file: Holds the token; see `placed`.
        say: Tells the user something.
        address: Of the interface on which workers accept other hosts; by default that of the route
            to the coordinator.
        run_dir: The run's directory on this host, which may hold checkpoints of the run already; by
            default one below `runs/` with the name that it has on the coordinator's host.
        placed: The name of this agent, if an engine has placed it here. Then its token comes from
            standard input, and it ends when that is closed, not by a signal: those announce that
            the host will be taken away. Its run directory is one of its user's that no other agent
            uses.
        spawned: The process of a fork server, if it has been started.
        profile: Speeds of this host; None for what the run was given, or measures.
        serving: Serves the metrics of this host; None: nothing does.

    Raises:
        JobError: The run cannot be joined.
        Interrupted: A signal has ended it, or the run.
        HoldfastError: The workers of this host cannot be started, or the run has failed.
    """
    token = read_token(None if placed else token_file)
    hostname = placed or socket.gethostname()
    if not address:
        address = _route_to(coordinator)
        say(f"workers use {address}, the address of the route to {coordinator}")
    with _stop_requested(is_placed=bool(placed)) as stop:
        if placed:
            begin(partial(stop.append, True))
        timeout_s = PLACED_TIMEOUT_S if placed else JOIN_TIMEOUT_S
        joined = join(coordinator, token, hostname, timeout_s, None)
        delay = RejoinDelay()
        delay_s = 0.0
        with closing(
            _Host(coordinator, address, run_dir, spawned, profile, serving, is_placed=bool(placed))
        ) as host:
            while True:
                _rest(delay_s, stop)
                began = time.monotonic()
                was_told = host.work(joined, say, stop)
                served_s = time.monotonic() - began
                before = joined.credentials.agent
                delay_s = delay.after(served_s) if was_told else 0.0
                try:
                    joined = join(coordinator, token, hostname, REJOIN_TIMEOUT_S, before)
                except NoRun:
                    host.finish(stop)
                    break
    if placed:
        tell_engine(OVER)
    elif host.was_stopped:
        raise Interrupted("the run was stopped; join again once it is continued")
    elif host.failure:
        raise HoldfastError(f"the run has failed: {host.failure}")
    say("the run is over")


def _route_to(coordinator: str) -> str:
    host, _, port = coordinator.rpartition(":")
    if not (host and port.isdecimal()):
        raise JobError(f"--join {coordinator}: give the address and port that the run has printed")
    try:
        return address_towards(host, int(port))
    except OSError as error:
        raise JobError(f"{host} cannot be reached: {error.strerror or error}") from None


class _Host:
    """State that this host keeps while its agents come and go.

    Args:
        coordinator: Its address and port.
        address: Address of the interface on which workers accept other hosts.
        run_dir: See `serve`.
        spawned: The process of a fork server, if it has been started.
        profile: Speeds of this host, if that was given.
        serving: See `serve`.
        is_placed: True if an engine has started this.

    Attributes:
        was_stopped: True if the run was stopped while the newest agent worked for it.
        failure: Why it has failed then; empty if it has not.
    """

    def __init__(
        self,
        coordinator: str,
        address: str,
        run_dir: Path | None,
        spawned: Spawned | None,
        profile: Profiles | None,
        serving: Serving | None,
        *,
        is_placed: bool,
    ) -> None:
        self._profile = "" if profile is None else profile.for_run()
        self._control = control_address(coordinator)
        self._address = address
        self._serving = serving
        self._run_dir = run_dir
        self._spawned = spawned
        self._is_placed = is_placed
        self._forks: ForkServer | None = None
        self._sent: Cursors | None = None
        self._metrics: StepTail | None = None
        self._collector: Collector | None = None
        self._claim = ExitStack()
        self._shares: tuple[Share, ...] | None = None
        self._trainer = TrainerServer.of(os.environ)
        self.was_stopped = False
        self.failure = ""

    def work(self, joined: Joined, say: Say, stop: list[bool]) -> bool:
        """Run an agent until it ends.

        Returns:
            Whether the coordinator told it to: the run is over, or this host was taken for lost.
        """
        agent = joined.credentials.agent
        name = joined.message.name
        sent, packed = fetch_job(self._control, agent)
        run_directory = self._run_directory(sent, packed, say, stop)
        with run_directory as directory, EventLog(directory.path / EVENTS) as log:
            say(f"joined as {name}; run directory {directory.path}")
            if self._serving is not None:
                self._claim.enter_context(self._serving(directory.path, say))
                self._serving = None
            Seal.of(directory.job.checkpoint)  # refuse before any worker is started
            shares = self._claimed_shares(directory, sent.run, stop)
            if self._sent is None:
                self._sent = ends_of(directory.path)
            if sent.checkpoint is not None:
                provide(directory.path, sent.checkpoint, self._control, agent, log, host=name)
            if sent.collects and self._metrics is None:
                path = directory.path / METRICS
                self._metrics = StepTail(path, StepCursor(place=end_of(path)))
                self._collector = Collector(directory.path, self._control, agent)
            shipper = Shipper(directory.path, self._control, agent, self._sent, self._metrics)
            forks = self._fork_server(directory)
            exits = ProcessExits(directory.job.restarts, log)
            attempt = joined.message.attempt
            interface = self._interface(directory, joined)
            hosts = LocalHosts(directory, attempt, log, exits, forks, None, interface, shares)
            with (
                closing(hosts),
                shipper,  # until the workers have ended
                closing(hosts.start_host(name, self._control)) as host,
                self._posting(host, directory, log),
            ):
                while (state := _next_state(host)) in (HostState.STARTING, HostState.UP):
                    if stop:
                        raise Interrupted(_ENDED)
                self.was_stopped = host.was_stopped
                self.failure = host.failure
        return state is HostState.LEFT

    def _claimed_shares(
        self, directory: RunDirectory, run: str, stop: list[bool]
    ) -> tuple[Share, ...]:
        """Shares for the workers of this host, claimed until `close`.

        Raises:
            EngineError: Something of it is not free.
        """
        if self._shares is None:
            wait = partial(_wait_for_claim, stop) if self._is_placed else None
            job = directory.job
            claim = claimed_shares(job, run, wait, is_exclusive=job.resources.is_given)
            self._shares = self._claim.enter_context(claim)
        return self._shares

    def finish(self, stop: list[bool]) -> None:
        """The run is over: see that the coordinator has its last checkpoint."""
        if self._collector is not None:
            self._collector.finish(lambda: bool(stop))

    def close(self) -> None:
        """End the collector and the fork server, and release what this host has claimed."""
        if self._collector is not None:
            self._collector.close()
        if self._forks is not None:
            self._forks.close()
        self._claim.close()

    def _posting(
        self, host: LocalHost, directory: RunDirectory, log: EventLog
    ) -> AbstractContextManager[object]:
        """Posts the progress of the run while it is open, if this is a pod of a TrainJob."""
        if self._trainer is None:
            return nullcontext()
        return TrainJobStatus(self._trainer, host.progress, directory.job.hosts, log)

    def _run_directory(
        self, message: JobMessage, packed: bytes, say: Say, stop: list[bool]
    ) -> RunDirectory:
        """The run's directory on this host, with the job and the code of its task.

        Raises:
            JobError: It is that of another run, or cannot be used.
            ProtocolError: The coordinator has sent no job.
        """
        if Path(message.run).name != message.run:
            raise ProtocolError(f"the coordinator sent a run named {message.run!r:.80}")
        directory = self._directory_of(message, say, stop)
        self._run_dir = directory.path
        try:
            code.unpack(packed, directory.path)
            code_version.keep(directory.path, message.code_version)
            if profile := self._profile or message.profile:
                replace_synced(directory.path / PROFILE, profile.encode())
        except OSError as error:
            raise JobError(
                f"{error.filename or directory.path}: {error.strerror}; fix that, or name another "
                "--run"
            ) from None
        return directory

    def _directory_of(self, message: JobMessage, say: Say, stop: list[bool]) -> RunDirectory:
        job = load.of_text(message.job, "of the coordinator")
        path = self._run_dir
        if path is None and self._is_placed:
            return placed_directory(message.run, job, message.run_id)
        path = path or RUNS / message.run
        resume = (path / JOB_FILE).exists()
        until = time.monotonic() + HELD_TIMEOUT_S
        has_said = False
        while True:
            try:
                return RunDirectory(path, job, resume=resume, run_id=message.run_id)
            except InUse as error:
                if time.monotonic() > until:
                    raise
                if not has_said:
                    say(f"{error}. {_HELD}")
                    has_said = True
            _rest(TICK_S, stop)

    def _fork_server(self, directory: RunDirectory) -> ForkServer:
        """A fork server that lasts, so that no agent's workers need to import torch again."""
        if self._forks is not None and self._forks.process.status is not None:
            self._forks.close()
            self._forks = None
        if self._forks is None:
            self._forks = fork_server(directory.job, self._spawned, run_dir=directory.path)
            self._spawned = None
        return self._forks

    def _interface(self, directory: RunDirectory, joined: Joined) -> Interface:
        credentials = joined.credentials
        if directory.job.network == "trusted":
            credentials = HostCredentials(agent=credentials.agent)
        return Interface(address=self._address, credentials=credentials)


def _wait_for_claim(stop: list[bool], attempt: Callable[[], str], lacking: str) -> str:
    """Wait a while: agents of two runs may have been started at once, or one has just ended."""
    deadline = time.monotonic() + CLAIM_TIMEOUT_S
    while lacking and time.monotonic() < deadline:
        _rest(LOOK_S, stop)
        lacking = attempt()
    return lacking


def _rest(delay_s: float, stop: list[bool]) -> None:
    """Wait before an agent offers its workers again."""
    ends_at = time.monotonic() + delay_s
    while time.monotonic() < ends_at:
        if stop:
            raise Interrupted(_ENDED)
        time.sleep(TICK_S)


def _next_state(host: LocalHost) -> HostState:
    """Wait a moment for news of an agent; returns its state.

    Raises:
        HoldfastError: It cannot be replaced.
    """
    news = select.poll()
    for source in host.sources():
        news.register(source, select.POLLIN)
    news.poll(1000 * TICK_S)
    state = host.state()
    if state is HostState.LOST:
        host.lose()
    return state


@contextmanager
def _stop_requested(*, is_placed: bool) -> Iterator[list[bool]]:
    """A list that is not empty once a signal has asked for the end.

    Args:
        is_placed: True if an engine decides that instead: it is given the signal.
    """
    requested: list[bool] = []

    def stop(_number: int, _frame: FrameType | None) -> None:
        if is_placed:
            tell_engine(TAKEN_AWAY)
        else:
            requested.append(True)

    with handling(active_stop_signals(), stop):
        yield requested
