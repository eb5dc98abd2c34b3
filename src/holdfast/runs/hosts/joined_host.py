"""JoinedHost: this host while it works for a run, with its agents, one after the other.

    joined ─▶ job and sources ─▶ directory, claim, checkpoint ─▶ agent ─▶ LEFT, LOST ─▶ join again

Each agent has a name of its own: a host that was taken for lost is fenced under its old name. What
does not depend on the name lasts from one agent to the next: the fork server, which has imported
torch, the claim on CPUs and GPUs, the node that takes part in elections, and how far the logs were
sent. Where the coordinator is may change at any time, so all that speak to it ask for its address.
"""

from __future__ import annotations

import math
import os
import select
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from holdfast.checkpoint.sealing.seal import Seal
from holdfast.clusters.engines.kubernetes.trainjob_status import TrainerServer, TrainJobStatus
from holdfast.core.placement.shares import Share
from holdfast.errors import HoldfastError, Interrupted, JobError, ProtocolError
from holdfast.hardware.profile_file import Profiles
from holdfast.job import JOB_FILE, load
from holdfast.launch.fork_client import ForkServer
from holdfast.launch.spawn import Spawned
from holdfast.linux.files import replace_synced
from holdfast.rundir import code_version
from holdfast.rundir.follow import StepCursor, StepTail, end_of
from holdfast.rundir.json_lines import EventLog
from holdfast.rundir.run_directory import (
    ARCHIVE,
    EVENTS,
    METRICS,
    PROFILE,
    RUNS,
    InUse,
    RunDirectory,
    RunPaths,
    placed_directory,
)
from holdfast.runs.hosts.checkpoint_fetch import provide
from holdfast.runs.hosts.collector import Collector
from holdfast.runs.hosts.endpoint import Interface
from holdfast.runs.hosts.host_claims import LOOK_S, claimed_shares
from holdfast.runs.hosts.hosts import HostState
from holdfast.runs.hosts.local import LocalHost, LocalHosts
from holdfast.runs.hosts.shipper import Cursors, Shipper, ends_of
from holdfast.runs.hosts.succession import Attend, Succession
from holdfast.runs.process_exits import ProcessExits
from holdfast.runs.replication.etcd_node import EtcdNode, prefix_of
from holdfast.runs.replication.host_node import Node
from holdfast.runs.replication.node import ConsensusNode
from holdfast.runs.run_fork_server import fork_server
from holdfast.tasks import code
from holdfast.wire.join import (
    FETCH_TIMEOUT_S,
    Joined,
    NoRun,
    RunIsOver,
    control_address,
    fetch_job,
    join,
)
from holdfast.wire.rpc import JobMessage
from holdfast.wire.tls import Credentials, HostCredentials
from holdfast.wire.token import Token

Say: TypeAlias = Callable[[str], None]
Serving: TypeAlias = Callable[[Path, Say], AbstractContextManager[None]]
"""Serves the metrics of a run directory of this host while its context is open."""

REJOIN_TIMEOUT_S: Final = 5.0
"""Time to wait for it once the agent has ended as it was told: the run may be over."""
LOST_REJOIN_TIMEOUT_S: Final = 60.0
"""The same once the agent was lost: the run continues, maybe with a coordinator that moves now."""
CLAIM_TIMEOUT_S: Final = 15.0
"""Time that an agent which an engine has placed waits for what other runs use."""
TRY_TIMEOUT_S: Final = 1.0
"""The same for one try: another host may have taken over the coordinator meanwhile."""
FETCH_TRY_S: Final = 5.0
"""Time that one try to get the job may take, of `FETCH_TIMEOUT_S`."""
TICK_S: Final = 0.1
HELD_TIMEOUT_S: Final = 660.0
"""Time to wait for a run directory that another agent holds: one without a coordinator ends
within ten minutes.
"""
_HELD: Final = (
    "An agent of an earlier start of the run ends ten minutes after its coordinator, or when you "
    "end it; this one waits for that"
)
LEAVE_TIMEOUT_S: Final = 10.0
"""Time that the coordinator may take to continue without a host that leaves."""
ENDED: Final = "the agent was ended; the run continues without this host"


class JoinedHost:
    """State that this host keeps while its agents come and go.

    Args:
        coordinator: Its address and port.
        address: Address of the interface on which workers accept other hosts.
        run_dir: See `serve`.
        spawned: The process of a fork server, if it has been started.
        profile: Speeds of this host, if that was given.
        serving, attend: See `serve`.
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
        attend: Attend,
        *,
        is_placed: bool,
    ) -> None:
        self._profile = "" if profile is None else profile.for_run()
        self._joined = coordinator
        self._address = address
        self._attend = attend
        self._node: Node | None = None
        self._succession: Succession | None = None
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
        # Made before the job is known, since the request for the job names it. With an engine the
        # coordinator never moves, and the agents that it places need none.
        if self._node is None and agent is not None and not self._is_placed:
            self._node = ConsensusNode(self._address, agent, begins=False)
        node = self._node.name if self._node is not None else ""
        sent, packed = self._fetch_job(agent, node, stop)
        run_directory = self._run_directory(sent, packed, say, stop)
        with run_directory as directory, EventLog(directory.path / EVENTS) as log:
            say(f"joined as {name}; run directory {directory.path}")
            if self._serving is not None:
                self._claim.enter_context(self._serving(directory.path, say))
                self._serving = None
            Seal.of(directory.job.checkpoint)  # refuse before any worker is started
            shares = self._claimed_shares(directory, sent.run, stop)
            # Logs of an earlier start of the run are not sent.
            if self._sent is None:
                self._sent = ends_of(directory.path)
            # Only where the coordinator may move does this host take part in elections, with one
            # node for all of its agents.
            if not sent.moves:
                node = ""
                self._close_node()
            elif self._node is not None and self._succession is None:
                self._node = self._node_for(self._node, directory, joined.message.attempt)
                node = self._node.name
                self._succession = self._follow_coordinator(self._node, directory, joined, say)
            if sent.checkpoint is not None:
                provide(directory.path, sent.checkpoint, self._control, agent, log, host=name)
            if sent.collects and self._metrics is None:
                path = directory.path / METRICS
                self._metrics = StepTail(path, StepCursor(place=end_of(path)))
                self._collector = Collector(directory.path, self._ships_to, agent)
            shipper = Shipper(directory.path, self._ships_to, agent, self._sent, self._metrics)
            forks = self._fork_server(directory)
            exits = ProcessExits(directory.job.restarts, log)
            attempt = joined.message.attempt
            interface = self._interface(directory, joined)
            hosts = LocalHosts(directory, attempt, log, exits, forks, None, interface, shares, node)
            with (
                closing(hosts),
                shipper,  # until the workers have ended
                closing(hosts.start_host(name, self._control)) as host,
                self._posting(host, directory, log),
            ):
                leaves_until = math.inf
                while (state := self._next_state(host)) in (HostState.STARTING, HostState.UP):
                    if stop:
                        leaves_until = min(leaves_until, time.monotonic() + LEAVE_TIMEOUT_S)
                        host.leave()  # again, in case the agent had no handler yet
                    # An agent that has not begun, a second signal, or an agent that does not leave
                    # in time: it is ended, and the coordinator takes the host for lost.
                    is_starting = bool(stop) and state is HostState.STARTING
                    if is_starting or len(stop) > 1 or time.monotonic() > leaves_until:
                        raise Interrupted(ENDED)
                self.was_stopped = host.was_stopped
                self.failure = host.failure
        return state is HostState.LEFT

    def join_again(
        self,
        token: Token,
        hostname: str,
        before: Credentials | None,
        stop: list[bool],
        *,
        was_told: bool,
    ) -> Joined:
        """Join again, wherever the coordinator is now.

        Args:
            token, hostname, before: See `join`.
            stop: Not empty once this host is to leave.
            was_told: Result of `work`.

        Raises:
            NoRun: The run is over, as far as this host knows.
        """
        until = time.monotonic() + (REJOIN_TIMEOUT_S if was_told else LOST_REJOIN_TIMEOUT_S)
        while True:
            # This host may be the one that takes over: then it joins its own coordinator.
            self.rest(0, stop)
            left_s = until - time.monotonic()
            try:
                timeout_s = min(left_s, TRY_TIMEOUT_S)
                return join(self._where, token, hostname, timeout_s, before)
            except RunIsOver:
                raise
            except NoRun:
                if time.monotonic() > until:
                    raise

    def _fetch_job(
        self, agent: Credentials | None, node: str, stop: list[bool]
    ) -> tuple[JobMessage, bytes]:
        """The job of the run, and its sources, wherever the coordinator is now.

        Raises:
            NoRun: No coordinator answers.
        """
        until = time.monotonic() + FETCH_TIMEOUT_S
        while self._succession is not None and time.monotonic() < until - FETCH_TRY_S:
            self.rest(0, stop)  # this host may be the one that takes over
            with suppress(NoRun):
                return fetch_job(self._control, agent, node, FETCH_TRY_S)
        return fetch_job(self._control, agent, node, until - time.monotonic())

    def rest(self, delay_s: float, stop: list[bool]) -> None:
        """Wait a while, for instance before the workers of this host are offered again.

        Raises:
            Interrupted: This host is to leave.
        """
        ends_at = time.monotonic() + delay_s
        while True:
            self._poll_succession()
            if stop:
                raise Interrupted(ENDED)
            if time.monotonic() >= ends_at:
                return
            time.sleep(TICK_S)

    @property
    def _where(self) -> str:
        """Address and port where hosts join now."""
        return self._succession.where if self._succession else self._joined

    @property
    def _control(self) -> str:
        """Address of the coordinator's gRPC service now."""
        return control_address(self._where)

    def _ships_to(self) -> str:
        """Address to which this host sends its logs; empty if it has the coordinator."""
        is_here = self._succession is not None and self._succession.is_here
        return "" if is_here else self._control

    def _node_for(self, node: Node, directory: RunDirectory, attempt: str) -> Node:
        """The node for a run, in place of the one that was made before the job was known."""
        etcd = directory.job.etcd
        if etcd is None:
            return node
        made = EtcdNode(etcd, prefix_of(directory.path, attempt), self._address)
        node.close()
        return made

    def _follow_coordinator(
        self, node: Node, directory: RunDirectory, joined: Joined, say: Say
    ) -> Succession:
        """Take part in elections of the host with the coordinator, until `close`."""
        node.start()
        return Succession(
            node,
            RunPaths(directory.path, directory.job),
            joined.message.attempt,
            self._joined,
            self._address,
            self._attend,
            say,
        )

    def _close_node(self) -> None:
        if self._node is not None:
            self._node.close()
            self._node = None

    def _poll_succession(self) -> None:
        if self._succession is not None:
            self._succession.poll(self._forks)

    def _next_state(self, host: LocalHost) -> HostState:
        """Wait a moment for news of an agent; returns its state.

        Raises:
            HoldfastError: It cannot be replaced, or the coordinator of this host fails.
        """
        news = select.poll()
        for source in (*host.sources(), *(self._succession.sources() if self._succession else ())):
            news.register(source, select.POLLIN)
        news.poll(1000 * TICK_S)
        self._poll_succession()
        state = host.state()
        if state is HostState.LOST:
            host.lose()
        return state

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
        """The run is over: note that here, and see that the coordinator has its last checkpoint."""
        assert self._run_dir is not None, "it has worked for the run"
        with EventLog(self._run_dir / EVENTS) as log:
            if self.failure:
                log.event("run-failed", error=HoldfastError.__name__, message=self.failure)
            else:
                log.event("run-ended", status="stopped" if self.was_stopped else "finished")
        if self._collector is not None:
            self._collector.finish(lambda: bool(stop))
        if self._succession is not None:
            self._succession.finish()

    def close(self) -> None:
        """End the collector, the coordinator if it is here, and the fork server, and release what
        this host has claimed.
        """
        if self._collector is not None:
            self._collector.close()
        if self._succession is not None:
            self._succession.close()
        self._close_node()
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
            replace_synced(directory.path / ARCHIVE, packed)
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
    """Wait a while for something that this host needs."""
    ends_at = time.monotonic() + delay_s
    while time.monotonic() < ends_at:
        if stop:
            raise Interrupted(ENDED)
        time.sleep(TICK_S)
