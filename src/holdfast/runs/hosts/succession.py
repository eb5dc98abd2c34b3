"""Succession: a host that works for a run takes over its coordinator once it is elected.

    node leads ─▶ secrets of the journal, coordinator process, announcement ─▶ other hosts
    another leads ─▶ the coordinator of this host ends

The command of a host that has joined polls it, also while it has no agent.

Another host leads. `where` is the address that its leader has announced; before the first move, the
one at which this host has joined. The agent is another process, so the address is written into a
file that it reads.

This host leads. The leader before is lost, has left, or can append nothing any more. The journal
has the run's secrets: with these, certificates that hosts have got before are good here, too. They
are stored, the address is announced, and a coordinator starts, at the same port if that is free. It
has the whole journal, so it lets the hosts report and continues (`core.coordinator`). From now on
this command also shows and stores the progress of the run, as that of the first host did. A
coordinator that ends is started again.

This host leads no longer. The coordinator here ends, and agents look for that of the next leader.

The run is over. The host of the coordinator stores the result. One that leaves before has another
host elected first, if there is one. If this host cannot start a coordinator, its command ends with
an error, and so leaves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Protocol

from holdfast.coordinator.replicated_journal import records_in, told_nodes
from holdfast.errors import HoldfastError, JobError
from holdfast.launch.child import Forker
from holdfast.linux.files import replace_synced
from holdfast.record.follower import Follower
from holdfast.record.sink import Sink
from holdfast.rundir.json_lines import EventLog
from holdfast.rundir.run_directory import COORDINATOR_ADDRESS, EVENTS, RunPaths
from holdfast.runs.coordinator_process import CoordinatorProcess, Joining
from holdfast.runs.hosts.endpoint import Endpoint, free_port, take_secrets
from holdfast.runs.process_exits import ProcessExits
from holdfast.wire.join import control_address

if TYPE_CHECKING:
    from _typeshed import HasFileno

    from holdfast.runs.replication.host_node import Node

LEAVE_TIMEOUT_S: Final = 5.0
"""Time until another host leads, once this one leaves."""
END_TIMEOUT_S: Final = 15.0
"""Time until the run is over, once this host was told so."""
TICK_S: Final = 0.05


class Attendant(Protocol):
    """Watcher of a run that this host has taken over."""

    @property
    def sinks(self) -> Sequence[Sink]:
        """Receivers of its progress."""

    def conclude(self, summary: dict[str, Any] | None, error: str) -> None:
        """Keep the result of the run.

        Args:
            summary: Report of a worker at the end; None if the run has failed.
            error: Why it has failed.
        """


Attend = Callable[[RunPaths], Attendant]
"""Called with the run's directory once this host has taken over."""


class Succession:
    """The coordinator of a run, as far as it is on this host.

    Args:
        node: The node of this host.
        directory: The run's directory on this host.
        attempt: Names this start of the run.
        joined: Address and port where this host has joined.
        address: Address of this host at which it would listen.
        attend: Makes the watcher of the run.
        say: Tells the user something.
    """

    def __init__(
        self,
        node: Node,
        directory: RunPaths,
        attempt: str,
        joined: str,
        address: str,
        attend: Attend,
        say: Callable[[str], None],
    ) -> None:
        self._node = node
        self._directory = directory
        self._attempt = attempt
        self._joined = joined
        self._address = address
        self._attend = attend
        self._say = say
        self._owned = ExitStack()
        self._log = self._owned.enter_context(EventLog(directory.path / EVENTS))
        self._coordinator: CoordinatorProcess | None = None
        self._attendant: Attendant | None = None
        self._follower: Follower | None = None
        self._written = ""
        self._tell_agent()

    @property
    def where(self) -> str:
        """Address and port where hosts join now."""
        return self._node.coordinator or self._joined

    @property
    def is_here(self) -> bool:
        """True if the coordinator is on this host."""
        return self._coordinator is not None

    def sources(self) -> Sequence[HasFileno]:
        """Sources that are readable when there is news."""
        return [self._node, *(self._coordinator.sources() if self._coordinator else ())]

    def poll(self, forks: Forker | None) -> None:
        """Begin or end the coordinator of this host, if that is due.

        Args:
            forks: Forks it, if it can.

        Raises:
            HoldfastError: The coordinator of this host fails.
        """
        self._node.take_news()
        if self._node.leads and self._coordinator is None:
            try:
                self._begin(forks)
            except OSError as error:
                raise HoldfastError(
                    f"this host cannot take over the coordinator: {error.filename}: "
                    f"{error.strerror}; fix that, and join again"
                ) from None
        elif self._coordinator is not None and not self._node.leads:
            self._end()
        self._tell_agent()
        if self._coordinator is not None:
            self._coordinator.listen()
            if not self._coordinator.is_over:
                self._coordinator.restart_if_ended()
            if self._follower is not None:
                self._follower.poll(self._coordinator.state)

    def finish(self) -> None:
        """The run is over: keep its result, if its coordinator is on this host."""
        coordinator = self._coordinator
        if coordinator is None or not coordinator.await_end(END_TIMEOUT_S):
            return
        state = coordinator.state
        coordinator.disconnect()
        self._end()
        if self._follower is not None:
            self._follower.poll(state)
        if self._attendant is not None and state is not None:
            self._attendant.conclude(None if state.reason else state.result, state.reason)

    def close(self) -> None:
        """Have another host lead, if this one does, and end the coordinator of this one."""
        self._node.leave()
        deadline = time.monotonic() + LEAVE_TIMEOUT_S
        while self.is_here and self._node.has_others and time.monotonic() < deadline:
            time.sleep(TICK_S)
        self._end()
        self._owned.close()

    def _begin(self, forks: Forker | None) -> None:
        entries = records_in(self._node.entries)
        # They are the first entry of every journal, and nothing changes them.
        (secrets, *_) = [each.secrets for each in entries if each.secrets is not None]
        endpoint = self._endpoint()
        path = self._directory.path
        job = self._directory.job
        take_secrets(path, secrets, endpoint)
        # Agents connect from now on, and try until it answers.
        self._node.announce(endpoint.public, told_nodes(entries))
        self._log.event("coordinator-moved", address=endpoint.public)
        self._say(
            f"the coordinator's host is lost or has left; this one continues at {endpoint.public}"
        )
        self._attendant = self._attend(self._directory)
        self._follower = Follower(self._directory, self._attendant.sinks)
        self._coordinator = CoordinatorProcess(
            self._directory,
            self._attempt,
            self._log,
            ProcessExits(job.restarts, self._log),
            watch=self._follower.has_sinks,
            forks=forks,
            # All hosts join from elsewhere, also the agent of this one.
            joining=Joining(node=self._node, address=endpoint.public, limit=job.most_hosts),
        )
        self._coordinator.connect()

    def _end(self) -> None:
        if self._coordinator is not None:
            self._coordinator.close()
            self._coordinator = None

    def _endpoint(self) -> Endpoint:
        """Endpoint of this host: at the port of the coordinator before, if that is free."""
        port = int(self._joined.rpartition(":")[2])
        endpoint = Endpoint(address=self._address, port=port)
        try:
            endpoint.check_ports()
        except JobError:
            return Endpoint(address=self._address, port=free_port())
        return endpoint

    def _tell_agent(self) -> None:
        address = control_address(self.where)
        if address != self._written:
            try:
                replace_synced(self._directory.path / COORDINATOR_ADDRESS, address.encode())
            except OSError as error:
                raise HoldfastError(
                    f"{error.filename}: {error.strerror}; the agent of this host does not learn "
                    "where the coordinator is; free disk space, and join again"
                ) from None
            self._written = address
