"""Service: turns the messages of agents and commands into events, and answers them.

It handles the remote procedure calls. `coordinator.dispatcher` has the machine and the time.

A stream is only the way to a client. What is sent on it is the newest whole state (`Outbox`), so a
stream that breaks loses nothing, and a client that reads slowly skips states. A client that may not
do what it asks gets an error, and is counted and logged. An error of the journal ends the process:
what cannot be made durable must not happen.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import grpc

from holdfast.coordinator.checkpoint_server import CheckpointServer
from holdfast.coordinator.dispatcher import Dispatcher
from holdfast.coordinator.host_files import HostFiles
from holdfast.coordinator.join_server import JoinServer
from holdfast.coordinator.journal import Journal
from holdfast.coordinator.outbox import Outbox, Watchers
from holdfast.coordinator.peers import identity_of, is_agent_of, is_local
from holdfast.coordinator.refusals import Refusals, Refused
from holdfast.coordinator.replicated_journal import ReplicatedJournal
from holdfast.core.debug_log import DebugLog
from holdfast.core.events import (
    AgentLost,
    Disconnected,
    ProgressRequested,
    ScaleRequested,
    StatusReceived,
    StopReceived,
)
from holdfast.core.protocol import DesiredState, Stage
from holdfast.errors import HoldfastError, ProtocolError
from holdfast.rundir.json_lines import EventLog
from holdfast.wire.join import JoinedMessage, JoinMessage, control_address
from holdfast.wire.rpc import (
    OPTIONS,
    DesiredStateMessage,
    FetchJobMessage,
    JobMessage,
    RunRequestMessage,
    RunStateMessage,
    ScaledMessage,
    ScaleMessage,
    ShipMessage,
    ShippedMessage,
    StatusMessage,
    handlers,
    server_credentials,
)
from holdfast.wire.tls import Identity, Role

if TYPE_CHECKING:  # X.509 and retention are for runs on several hosts
    from holdfast.coordinator.admission import Admission
    from holdfast.coordinator.collected_checkpoints import CollectedCheckpoints

LEAVE_TIMEOUT_S: Final = 5.0
"""Time that agents may take to hear that the run is over."""
WATCH_PAUSE_S: Final = 1e-4
"""Least time between two messages to a command, for each worker whose progress is in it."""
REPEAT_S: Final = 5.0
"""Time until an agent that is still behind is sent the same desired state again. Its stream loses
nothing, so it is on its way: while hosts and network are busy, another copy would only delay it.
"""


class RunService:
    """The coordinator's service for one run.

    Args:
        debug_log: The machine, and where its events are recorded.
        journal: The decisions that outlive this process.
        log: The run's log of events.
        admission: Says who may take part from another host; None if the run has one host.
        files: Files for other hosts.
        checkpoints: Checkpoints that other hosts send; None if this host has an agent.
    """

    def __init__(
        self,
        debug_log: DebugLog,
        journal: Journal | ReplicatedJournal,
        log: EventLog,
        admission: Admission | None,
        files: HostFiles,
        checkpoints: CollectedCheckpoints | None,
    ) -> None:
        self._files = files
        self._checkpoints = checkpoints
        self._admission = admission
        self._log = log
        self._refusals = Refusals(log)
        self._dispatcher = Dispatcher(
            debug_log, journal, log, self._send, self._refuse_host, self._on_handled
        )
        self._machine = self._dispatcher.machine
        self._watchers = Watchers(self._machine, self._state)
        self._agents: dict[str, Outbox[DesiredStateMessage]] = {}
        self._nodes: dict[str, str] = {}  # of the hosts, by the names of their agents
        self._present = frozenset[str]()  # the hosts that the journal has
        self._leaving: set[str] | None = None  # hosts of the end that may have a checkpoint to send
        self._told_of_end: set[str] = set()
        self._handled = asyncio.Event()
        self._scaled = 0  # workers that a command has asked for last

    async def serve(self, address: str, public: str = "", lost: Sequence[str] = ()) -> None:
        """Serve until the run has ended and one command has read the end.

        Args:
            address: The address in gRPC's notation, for this host.
            public: Address at which other hosts join, if there are any; see `wire.join`.
            lost: Agents of the host whose coordinator this one replaces.

        Raises:
            HoldfastError: It cannot listen at an address, or the journal cannot be written.
        """
        server = grpc.aio.server(options=OPTIONS)
        server.add_generic_rpc_handlers(tuple(self._handlers()))
        mask = os.umask(0o177)  # only its owner may connect, whatever the umask is
        try:
            server.add_insecure_port(address)
        except RuntimeError as error:
            raise HoldfastError(
                f"the coordinator cannot listen at {address}: {error}; its directory must be "
                "writable, on a disk that is not full and supports sockets"
            ) from None
        finally:
            os.umask(mask)
        async with self._joining(server, public):
            await server.start()
            self._dispatcher.wake_when_due()
            # Agents of the host that led before: they had no stream to this coordinator whose end
            # would tell it.
            for host in lost:
                ranks = [rank for rank, its in self._machine.members.items() if its == host]
                self._log.event("host-lost", host=host, ranks=ranks)
                self._dispatcher.tell(AgentLost(host))
            try:
                await self._dispatcher.ended
                # Agents have heard of the end; what their hosts have logged last is on its way.
                await self._files.await_last(LEAVE_TIMEOUT_S)
            finally:
                self._refusals.log_counts()
                await server.stop(LEAVE_TIMEOUT_S if self._agents else None)
                self._dispatcher.close()

    def _handlers(self) -> Iterator[grpc.GenericRpcHandler]:
        yield handlers(self._attend, self._watch, self._fetch_job, self._ship, self._scale)
        if self._checkpoints is not None:
            server = CheckpointServer(
                self._checkpoints, self._host_of, self._watchers.show, self._on_settled
            )
            yield server.handlers()

    @asynccontextmanager
    async def _joining(self, server: grpc.aio.Server, public: str) -> AsyncIterator[None]:
        """Let other hosts join within the context, and their agents connect."""
        if self._admission is None:
            yield
            return
        authority = self._admission.authority
        control = control_address(public)
        try:
            joining = JoinServer(public, authority, self._admit, self._refusals)
            server.add_secure_port(control, server_credentials(authority.coordinator))
        except (OSError, RuntimeError) as error:
            raise HoldfastError(
                f"the coordinator cannot listen at {public} and {control}: {error}; name another "
                "--port or --address"
            ) from None
        async with joining:
            yield

    def _admit(self, request: JoinMessage, before: Identity | None, address: str) -> JoinedMessage:
        """Let another host take part; see `join_server.Admit`."""
        assert self._admission is not None
        machine = self._machine
        if machine.stage == Stage.END:
            self._told_of_end |= {before.host} if before else set()
            raise Refused("the run is over", "there is nothing left to do", is_over=True)
        try:
            joined = self._admission.admit(request, before, machine.hosts, time.time())
        except HoldfastError as error:  # the journal is broken
            self._dispatcher.fail(error)
            raise Refused("a host while the run fails", "see its first host") from None
        self._log.event("host-joined", host=joined.name, address=address)
        # The machine hears of the loss now, and of the new agent with its first status.
        if before is not None:  # its agent has ended, or it would not ask
            self._dispatcher.tell(AgentLost(before.host))
        return joined

    async def _attend(
        self, statuses: AsyncIterator[StatusMessage], context: Any
    ) -> AsyncIterator[DesiredStateMessage]:
        """Serve one agent until its stream ends."""
        outbox = Outbox[DesiredStateMessage]()
        only = None if is_local(context) else await self._host_of(context)
        listening = asyncio.create_task(self._listen(statuses, outbox, only))
        try:
            while (desired := await outbox.get()) is not None:
                yield desired
            if outbox.refusal:
                await self._refuse(context, outbox.refusal)
        finally:
            listening.cancel()
            # If a newer stream has taken its place, the agent is not disconnected. An end of the
            # stream is no loss yet: the machine gives the agent some time to come back.
            for host in [name for name, own in self._agents.items() if own is outbox]:
                del self._agents[host]
                if self._machine.stage != Stage.END:
                    self._files.on_disconnected(host)
                self._dispatcher.tell(Disconnected(host))

    async def _listen(
        self,
        statuses: AsyncIterator[StatusMessage],
        outbox: Outbox[DesiredStateMessage],
        only: str | None,
    ) -> None:
        """Take the statuses of an agent, which may speak for one host if it comes from another."""
        try:
            async for message in statuses:
                host = message.status.host
                if only is not None and host != only:
                    outbox.refuse("a status in the name of another host")
                    return
                if self._admission and host not in self._agents:
                    self._admission.on_connected(host)
                # A status names its sender; the newest stream of an agent gets its desired states.
                self._agents[host] = outbox
                self._nodes[host] = message.node
                self._watchers.progress[host] = message.status.progress
                self._dispatcher.tell(StatusReceived(message.status))
        finally:
            outbox.close()

    async def _fetch_job(self, message: FetchJobMessage, context: Any) -> JobMessage:
        """Send another host what it must run."""
        host = await self._host_of(context)
        machine = self._machine
        job = self._files.job
        # Noted before the agent starts: until its first status nothing else names this node, and
        # the coordinator may move meanwhile.
        if self._admission is not None and job.moves and message.node:
            try:
                self._admission.expect(host, message.node)
            except HoldfastError as error:
                self._dispatcher.fail(error)
        if self._checkpoints is None or (machine.generation and machine.hosts):
            return job  # the state comes from workers, which is faster
        return job.model_copy(update={"checkpoint": self._checkpoints.newest})

    async def _ship(self, message: ShipMessage, context: Any) -> ShippedMessage:
        """Append what another host has logged to the logs of the run."""
        host = await self._host_of(context)
        try:
            return self._files.receive(host, message)
        except ProtocolError as error:
            await self._refuse(context, str(error))
            raise

    async def _host_of(self, context: Any) -> str:
        """The host whose agent makes a call from another host; others are refused."""
        identity = identity_of(context)
        if identity is None or identity.role != Role.AGENT:
            await self._refuse(context, "a certificate that is not an agent's")
        assert identity is not None  # else the call has ended
        return identity.host

    async def _refuse(self, context: Any, reason: str) -> None:
        """End a call from another host."""
        address = str(context.peer()).partition(":")[2].rpartition(":")[0]  # without its port
        self._refusals.add(address, reason)
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)

    async def _watch(
        self, requests: AsyncIterator[RunRequestMessage], context: Any
    ) -> AsyncIterator[RunStateMessage]:
        """Serve one command of this host until its stream ends."""
        if not is_local(context):
            await self._refuse(context, "a command from another host")
        outbox = self._watchers.add()
        reading = asyncio.create_task(self._read_requests(requests, outbox))
        over = False
        try:
            while (state := await outbox.get()) is not None:
                over = state.stage == Stage.END
                yield self._watchers.with_progress(state)
                await asyncio.sleep(WATCH_PAUSE_S * len(self._machine.members))
        finally:
            reading.cancel()
            self._watchers.remove(outbox)
            # The command has read the end and has left: nothing needs this process any more.
            if over:
                self._dispatcher.end()

    async def _read_requests(
        self, requests: AsyncIterator[RunRequestMessage], outbox: Outbox[RunStateMessage]
    ) -> None:
        try:
            async for request in requests:
                for name in request.lost:
                    present = [*self._machine.hosts]
                    # An engine knows its agents by the names under which it has placed them, to
                    # which joining adds a suffix.
                    for host in {name, *(each for each in present if is_agent_of(each, name))}:
                        self._dispatcher.tell(AgentLost(host))
                if request.stop or request.abort:
                    self._dispatcher.tell(StopReceived(at_once=request.abort))
                if request.watch:
                    self._dispatcher.tell(ProgressRequested())
        finally:
            outbox.close()

    async def _scale(self, message: ScaleMessage, context: Any) -> ScaledMessage:
        """Give the run another number of workers; answer once they train."""
        if not is_local(context):
            await self._refuse(context, "a command from another host")
        machine = self._machine
        workers = message.workers
        before = len(machine.members)
        if refusal := machine.refuses_size(workers):
            return ScaledMessage(refusal=refusal)
        self._log.event("scale-requested", workers=workers)
        self._dispatcher.tell(ScaleRequested(workers))
        self._scaled = workers
        while not (machine.stage == Stage.RUN and machine.is_full):
            if machine.stage == Stage.END:
                return ScaledMessage(refusal="the run is over")
            self._handled.clear()
            await self._handled.wait()
            # Of two requests the newer one counts: the size of the older one never comes.
            if self._scaled != workers:
                return ScaledMessage(refusal=f"it was scaled to {self._scaled} meanwhile")
        step = machine.resume_point.step if machine.resume_point else 0
        return ScaledMessage(before=before, step=step)

    def _on_settled(self, host: str) -> None:
        """Note that a host which knows of the end has nothing more to send."""
        if self._leaving and host in self._told_of_end:
            self._leaving.discard(host)
            self._watchers.show()

    def _send(self, host: str, desired: DesiredState) -> None:
        outbox = self._agents.get(host)
        if outbox is None:  # it is sent when its stream is back
            return
        now = asyncio.get_running_loop().time()
        newest = outbox.newest
        if newest is not None and newest.desired == desired and now < outbox.put_at + REPEAT_S:
            return
        key = self._admission.key_of(desired.generation) if self._admission else ""
        outbox.put(DesiredStateMessage(desired=desired, key=key))

    def _refuse_host(self, host: str, reason: str) -> None:
        """End the stream of an agent whose host is unlike the others."""
        advice = (
            "use hosts of one kind, or start a new run with numerics=portable, for x86-64 "
            "processors, or with numerics=mixed, where the bits depend on which host computes "
            "which shard"
        )
        if host in self._agents:
            self._agents[host].refuse(f"{host} is not like the other hosts: {reason}; {advice}")

    def _on_handled(self) -> None:
        """Show what has changed; at the end, note which agents must still hear of it."""
        self._handled.set()
        if self._leaving is None and self._machine.stage == Stage.END:
            # The command waits for them: one may have a newer checkpoint than is collected.
            self._leaving = set(self._agents)
        self._watchers.show()
        if self._admission is not None:
            self._note_present(self._admission)

    def _note_present(self, admission: Admission) -> None:
        """Note which hosts take part and have a node, so that some of them vote."""
        # Most events change no host, and there may be a thousand.
        if self._machine.hosts == self._present:
            return
        self._present = frozenset(self._machine.hosts)
        nodes = {host: self._nodes.get(host, "") for host in self._machine.hosts}
        try:
            admission.set_present({host: node for host, node in nodes.items() if node})
        except HoldfastError as error:
            self._dispatcher.fail(error)

    def _state(self) -> RunStateMessage:
        machine = self._machine
        return RunStateMessage(
            stage=machine.stage,
            reason=machine.reason,
            root_cause=machine.root_cause,
            result=None if machine.result is None else dict(machine.result),
            waiting_for=machine.waiting_for(),
            lacks_workers=machine.lacks_workers,
            is_receiving=self._checkpoints is not None and self._checkpoints.is_receiving,
            is_awaited=self._checkpoints is not None and bool(self._leaving),
            progress={},  # see `Watchers.with_progress`
        )
