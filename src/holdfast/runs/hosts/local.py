"""Local hosts: agents as children of this process, with workers that a fork server forks.

A host is STARTING until the fork server has imported torch: then its agent can fork workers, and it
is UP. It has LEFT if the agent ends as it was told, and is LOST if the agent or the fork server
ends otherwise.

If the agent ends, the fork server kills its workers, and the host is closed once all of them are
gone: the host in its place needs their memory and GPUs. If the fork server ends, the workers and
the agent end with it. All of that counts as one failure, and both are started again.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final

from holdfast.arena.memory import Arena
from holdfast.arena.worker_status import progress_of
from holdfast.core.placement.shares import Share
from holdfast.core.protocol import RUN_FAILED, WorkerProgress
from holdfast.errors import HoldfastError
from holdfast.launch.child import Child, Forker
from holdfast.launch.fork_client import ForkServer
from holdfast.launch.spawn import Spawned
from holdfast.linux.lifeline import LEAVE
from holdfast.rundir.json_lines import EventLog
from holdfast.rundir.run_directory import RunPaths
from holdfast.runs.hosts.endpoint import Interface
from holdfast.runs.hosts.hosts import LAST_STATE_S, HostState
from holdfast.runs.process_exits import ProcessExits, kill_if_stopped
from holdfast.runs.run_fork_server import RunForkServer
from holdfast.wire.worker_spec import SHARES

if TYPE_CHECKING:
    from _typeshed import HasFileno

    from holdfast.runs.coordinator_process import CoordinatorProcess

REAP_TIMEOUT_S: Final = 1.0
"""Time within which a fork server ends after an agent that has lost it."""


class LocalHost:
    """An agent on this machine, the arena that it works with, and its workers.

    Its evidence of a loss is the exit status of the agent, and of the fork server: without that,
    the workers end and the agent can do nothing.

    Args:
        name: The agent's.
        address: The coordinator's.
        attempt: Names this start of the run.
        directory: The run's directory.
        fork_server: Source of its workers.
        exits: Counts the ends of agents.
        interface: To other hosts, if there are any.
        shares: Shares of its workers; none: all of this host.
        forks: Forks the agent, if it can.
        node: Defined in `StatusMessage`.

    Attributes:
        name: The same.
        agent: The agent's process.
    """

    def __init__(
        self,
        name: str,
        address: str,
        attempt: str,
        directory: RunPaths,
        fork_server: RunForkServer,
        exits: ProcessExits,
        interface: Interface | None,
        shares: tuple[Share, ...],
        forks: Forker | None,
        node: str = "",
    ) -> None:
        self.name = name
        self._fork_server = fork_server
        self._exits = exits
        self._is_attached = False
        with ExitStack() as undo:
            self._arena = arena = Arena.create(directory.job.most_workers)
            undo.callback(arena.close)
            self._socket, far = socket.socketpair()
            undo.callback(self._socket.close)
            options = {
                "name": name,
                "run-dir": directory.path,
                "attempt": attempt,
                "address": address,
                "node": node,
                "arena": arena.fd,
                "forks": far.fileno(),
                "shares": SHARES.dump_json(shares).decode(),
            }
            fds = [arena.fd, far.fileno()]
            with far, ExitStack() as until_started:
                if interface is not None:
                    fds.append(until_started.enter_context(interface.credentials.in_memory()))
                    options |= {"interface": interface.address, "credentials": fds[-1]}
                log = directory.logs / "agent.log"
                self.agent = Child.start("holdfast.agent.main", options, log, fds, forks)
            # Closed in reverse order: the agent ends before its arena and its sockets are closed.
            self._owned = undo.pop_all()
            self._owned.callback(self.agent.close)

    def sources(self) -> Iterable[HasFileno]:
        """The processes, either of which may end, and change the state."""
        return self.agent, self._fork_server.current

    def state(self) -> HostState:
        """Look where the host is, and have it start workers as soon as it can.

        Raises:
            HoldfastError: It takes too long to start.
        """
        kill_if_stopped(self.agent)
        # An agent ends with its fork server, and may be seen to end before it.
        may_have = self.agent.status == 1 or self.agent.ended_with_fork_server
        if self._fork_server.has_ended(REAP_TIMEOUT_S if may_have else 0):
            return HostState.LOST
        if self.agent.status is not None:
            return HostState.LEFT if self.agent.status in (0, RUN_FAILED) else HostState.LOST
        if not self._is_attached and self._fork_server.is_ready():
            self._attach(self._fork_server.current)
        return HostState.UP if self._is_attached else HostState.STARTING

    def progress(self) -> WorkerProgress:
        """Progress of the worker that has come furthest."""
        found = progress_of(self._arena, range(self._arena.world_size))
        return max(found.values(), key=lambda each: each.step)

    @property
    def was_stopped(self) -> bool:
        """True if workers were requested to stop before the end of the run."""
        return self._arena.stop_requested

    @property
    def failure(self) -> str:
        """Why the run has failed, as the agent was told; empty if it has not."""
        return self.agent.last_output_line() if self.agent.status == RUN_FAILED else ""

    def leave(self) -> None:
        """Have the host leave the run; its agent ends once the coordinator knows."""
        self.agent.send(LEAVE)

    def lose(self) -> None:
        """Note that the host is lost, and release what it held.

        Raises:
            HoldfastError: Another host would not do better, or hosts are lost too often.
        """
        if self._fork_server.has_ended(0):
            self._fork_server.tolerate_end()
            self._exits.note("agent", self.agent)
        else:
            self._exits.tolerate("agent", self.agent)
        self.close()

    def close(self) -> None:
        """End the agent; returns when none of its workers is left."""
        self._owned.close()

    def _attach(self, server: ForkServer) -> None:
        """Have the fork server fork for the agent."""
        server.attach(self._socket)
        self._socket.close()
        self._is_attached = True
        self._owned.callback(server.await_workers_reaped)
        self._owned.callback(self.agent.close)  # before that


class LocalHosts:
    """Starts hosts on this machine for one run; they share a fork server.

    Args:
        directory: The run's directory.
        attempt: Names this start of the run.
        log: The run's log of events.
        exits: Counts the ends of agents and fork servers.
        fork_server, code: See `RunForkServer`.
        interface: To other hosts, if there are any.
        shares, node: See `LocalHost`.
    """

    def __init__(
        self,
        directory: RunPaths,
        attempt: str,
        log: EventLog,
        exits: ProcessExits,
        fork_server: ForkServer | Spawned | None,
        code: bytes | None,
        interface: Interface | None = None,
        shares: tuple[Share, ...] = (),
        node: str = "",
    ) -> None:
        self._interface = interface
        self._node = node
        self._shares = shares
        self._forks = fork_server
        self._directory = directory
        self._attempt = attempt
        self._log = log
        self._exits = exits
        self._fork_server = RunForkServer(directory, log, exits, fork_server, code)

    @property
    def doing(self) -> str:
        """Activity of the fork server until it is ready."""
        doing = self._fork_server.current.doing
        return f"the fork server was {doing}" if doing else ""

    def start_host(self, name: str, address: str) -> LocalHost:
        """Start a host and do not wait for it.

        Args:
            name: The agent's, never used before in this run.
            address: The coordinator's, as gRPC names it.
        """
        self._fork_server.replace_if_ended()
        host = LocalHost(
            name,
            address,
            self._attempt,
            self._directory,
            self._fork_server,
            self._exits,
            self._interface,
            self._shares,
            self._forks,
            self._node,
        )
        self._log.event("agent-started", host=name, pid=host.agent.pid)
        return host

    def close(self) -> None:
        """End the fork server, unless it was lent."""
        self._fork_server.close()


class OwnHost:
    """The supervisor's own host. An agent that is lost takes its workers with it: the host in its
    place has another name.

    Args:
        starter: Starts it.
        coordinator: The run's coordinator.
    """

    def __init__(self, starter: LocalHosts, coordinator: CoordinatorProcess) -> None:
        self._starter = starter
        self._coordinator = coordinator
        self._number = 0
        self._has_begun = False
        self._is_leaving = False
        self._host = self._start()

    @property
    def doing(self) -> str:
        """Implements `Hosts.doing`."""
        return self._starter.doing

    def sources(self) -> Iterable[HasFileno]:
        """Implements `Hosts.sources`."""
        return self._host.sources()

    def have_begun(self) -> bool:
        """Implements `Hosts.have_begun`."""
        return self._has_begun

    def replace_lost(self) -> None:
        """Implements `Hosts.replace_lost`."""
        state = self._host.state()
        self._has_begun |= state is HostState.UP
        if self._is_leaving and state in (HostState.LEFT, HostState.LOST):
            self._coordinator.hand_over()
            return
        # An agent leaves when it is told that the run is over. One that was taken for lost is told
        # so, too, while the run continues: then it is replaced.
        if state is HostState.LEFT and self._coordinator.await_end(LAST_STATE_S):
            return
        if state in (HostState.LEFT, HostState.LOST):
            self._host.lose()
            self._coordinator.report_lost(self._host.name)
            self._host = self._start()

    def leave(self) -> None:
        """Implements `Hosts.leave`."""
        self._is_leaving = True
        self._host.leave()

    def are_up(self) -> bool:
        """Implements `Hosts.are_up`."""
        return self._host.state() is HostState.UP

    def close(self) -> None:
        """Implements `Hosts.close`."""
        with suppress(HoldfastError):  # the run has ended as it has
            self._host.close()

    def _start(self) -> LocalHost:
        self._number += 1
        return self._starter.start_host(f"local-{self._number}", self._coordinator.address)
