"""Server: turns the messages of agents and commands into events, and answers them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Generic, TypeVar

import grpc

from holdfast.coordinator.admission import Admission
from holdfast.coordinator.driver import Driver
from holdfast.coordinator.journal import Journal
from holdfast.core.debug_log import DebugLog
from holdfast.core.events import (
    AgentLost,
    Disconnected,
    ProbeCompleted,
    ProgressRequested,
    RunEvent,
    StatusReceived,
    StopReceived,
    Tick,
)
from holdfast.core.protocol import DesiredState, Probe, Stage, WorkerProgress
from holdfast.errors import HoldfastError
from holdfast.observe.lines import EventLog
from holdfast.wire.messages import Message
from holdfast.wire.probe import accepts
from holdfast.wire.rpc import (
    OPTIONS,
    DesiredStateMessage,
    JoinedMessage,
    JoinMessage,
    RunRequestMessage,
    RunStateMessage,
    StatusMessage,
    handlers,
)

MAX_TICK_DELAY_S: Final = 1.0
"""A tick that is later than this was held up, and the messages of agents with it."""
LEAVE_TIMEOUT_S: Final = 5.0
"""How long agents may take to hear that the run is over."""
PROGRESS_INTERVAL_S: Final = 0.1
"""Least time between two messages to a command in which only the progress has changed."""
MAX_PROBES: Final = 64
"""Probes at a time."""

Sent = TypeVar("Sent", bound=Message)


class _Outbox(Generic[Sent]):
    """The newest message that was not yet sent to a client."""

    def __init__(self) -> None:
        self._newest: Sent | None = None
        self._over = False
        self._ready = asyncio.Event()

    def put(self, message: Sent) -> None:
        self._newest = message
        self._ready.set()

    def close(self) -> None:
        """End the client's stream."""
        self._over = True
        self._ready.set()

    async def get(self) -> Sent | None:
        """The next message; None at the end."""
        await self._ready.wait()
        self._ready.clear()
        return None if self._over else self._newest


class Server:
    """The coordinator's service for one run.

    Args:
        debug_log: The machine, and where its events are recorded.
        journal: The entries that outlive this process.
        log: The run's log of events.
        admission: Says who may connect from another host.
        joined: What a host that joins must know, apart from its name.
    """

    def __init__(
        self,
        debug_log: DebugLog,
        journal: Journal,
        log: EventLog,
        admission: Admission,
        joined: JoinedMessage,
    ) -> None:
        self._admission, self._joined, self._log = admission, joined, log
        self._driver = Driver(debug_log, journal, log, self._send, self._probe)
        self._probers = ThreadPoolExecutor(MAX_PROBES, "holdfast-probe")
        self._probing: set[asyncio.Task[None]] = set()
        self._agents: dict[str, _Outbox[DesiredStateMessage]] = {}
        self._watchers: list[_Outbox[RunStateMessage]] = []
        self._progress: dict[str, Mapping[int, WorkerProgress]] = {}  # by host
        self._refused: set[str] = set()
        self._shown: RunStateMessage | None = None
        self._show_at = 0.0
        self._tick: asyncio.TimerHandle | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(self, address: str, public: str = "") -> None:
        """Serve until the run has ended and a command that was told so disconnects.

        Args:
            address: The address in gRPC's notation.
            public: The address for agents of other hosts, if there are any.

        Raises:
            HoldfastError: It cannot listen at the address, or the journal cannot be written.
        """
        server = grpc.aio.server(options=OPTIONS)
        server.add_generic_rpc_handlers((handlers(self._attend, self._watch, self._join),))
        mask = os.umask(0o177)  # only its owner may connect, whatever the umask is
        try:
            server.add_insecure_port(address)
            if public:
                address = public
                server.add_insecure_port(public)
        except RuntimeError as error:
            advice = (
                "name another --port or --address"
                if public == address
                else "its directory must be writable, on a disk that is not full and supports "
                "sockets"
            )
            raise HoldfastError(
                f"the coordinator cannot listen at {address}: {error}; {advice}"
            ) from None
        finally:
            os.umask(mask)
        await server.start()
        self._wake_when_due()
        try:
            await self._ended
        finally:
            await server.stop(LEAVE_TIMEOUT_S if self._agents else None)
            self._probers.shutdown(cancel_futures=True)

    async def _join(self, request: JoinMessage, context: Any) -> JoinedMessage:
        """Let another host take part."""
        await self._admit(context)
        name = self._admission.name_of(request.hostname)
        self._log.event("host-joined", host=name, address=_address_of(context))
        return self._joined.model_copy(update={"name": name})

    async def _admit(self, context: Any) -> None:
        """Refuse a call from another host without the token."""
        if not self._admission.admits(context):
            address = _address_of(context)
            if address not in self._refused:  # once: it may try again and again
                self._log.event("host-refused", address=address)
            self._refused.add(address)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong token")

    async def _attend(
        self, statuses: AsyncIterator[StatusMessage], context: Any
    ) -> AsyncIterator[DesiredStateMessage]:
        """Serve one agent until its stream ends."""
        await self._admit(context)
        outbox = _Outbox[DesiredStateMessage]()
        listening = asyncio.create_task(self._listen(statuses, outbox))
        try:
            while (desired := await outbox.get()) is not None:
                yield desired
        finally:
            listening.cancel()
            for host in [name for name, own in self._agents.items() if own is outbox]:
                del self._agents[host]
                self._tell(Disconnected(host))

    async def _listen(
        self, statuses: AsyncIterator[StatusMessage], outbox: _Outbox[DesiredStateMessage]
    ) -> None:
        try:
            async for message in statuses:
                self._agents[message.status.host] = outbox
                self._progress[message.status.host] = message.status.progress
                self._tell(StatusReceived(message.status))
        finally:
            outbox.close()

    async def _watch(
        self, requests: AsyncIterator[RunRequestMessage], context: Any
    ) -> AsyncIterator[RunStateMessage]:
        """Serve one command of this host until its stream ends."""
        if not self._admission.is_local(context):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "for the run's own host only")
        outbox = _Outbox[RunStateMessage]()
        outbox.put(self._with_progress(self._state()))
        self._watchers.append(outbox)
        reading = asyncio.create_task(self._read_requests(requests, outbox))
        over = False
        try:
            while (state := await outbox.get()) is not None:
                over = state.stage == Stage.END
                yield state
        finally:
            reading.cancel()
            self._watchers.remove(outbox)
            if over and not self._ended.done():
                self._ended.set_result(None)

    async def _read_requests(
        self, requests: AsyncIterator[RunRequestMessage], outbox: _Outbox[RunStateMessage]
    ) -> None:
        try:
            async for request in requests:
                for host in request.lost:
                    self._tell(AgentLost(host))
                if request.stop:
                    self._tell(StopReceived())
                if request.watch:
                    self._tell(ProgressRequested())
        finally:
            outbox.close()

    def _send(self, host: str, desired: DesiredState) -> None:
        if host in self._agents:  # else it is sent when its stream is back
            key = self._admission.key_of(desired.generation)
            self._agents[host].put(DesiredStateMessage(desired=desired, key=key))

    def _probe(self, probe: Probe) -> None:
        """Begin a probe of a host."""
        task = asyncio.get_running_loop().create_task(self._look_at_host(probe))
        self._probing.add(task)  # else nothing holds it
        task.add_done_callback(self._probing.discard)

    async def _look_at_host(self, probe: Probe) -> None:
        loop = asyncio.get_running_loop()
        is_reached = await loop.run_in_executor(self._probers, accepts, probe.address)
        self._log.event("host-probed", host=probe.host, answered=is_reached)
        self._tell(ProbeCompleted(probe.number, is_reached))

    def _tell(self, event: RunEvent) -> None:
        """Pass `event` to the driver, and send all watchers the state if it has changed."""
        try:
            self._driver.handle(event)
        except Exception as error:  # noqa: BLE001  # it ends the process
            if not self._ended.done():
                self._ended.set_exception(error)
            return
        self._show()
        self._wake_when_due()

    def _show(self) -> None:
        """Send all watchers the state if it has changed, and the progress at intervals."""
        state, now = self._state(), asyncio.get_running_loop().time()
        is_due = self._driver.machine.watched and now >= self._show_at
        if state == self._shown and not is_due:
            return
        self._shown, self._show_at = state, now + PROGRESS_INTERVAL_S
        for watcher in self._watchers:
            watcher.put(self._with_progress(state))

    def _wake_when_due(self) -> None:
        """Schedule the machine's next tick."""
        if self._tick is not None:
            self._tick.cancel()
        wait_s = self._driver.wait_s()
        if wait_s is not None:
            loop = asyncio.get_running_loop()
            self._tick = loop.call_later(wait_s, self._look_at_time, loop.time() + wait_s)

    def _look_at_time(self, due: float) -> None:
        """Send the machine a tick, unless messages of agents may have been held up until now."""
        loop = asyncio.get_running_loop()
        if loop.time() > due + MAX_TICK_DELAY_S:  # by a slow disk, say: read those messages first
            self._tick = loop.call_later(MAX_TICK_DELAY_S, self._tell, Tick())
        else:
            self._tell(Tick())

    def _with_progress(self, state: RunStateMessage) -> RunStateMessage:
        progress = {
            rank: self._progress[host][rank]
            for rank, host in self._driver.machine.members.items()
            if rank in self._progress.get(host, {})
        }
        return state.model_copy(update={"progress": progress})

    def _state(self) -> RunStateMessage:
        machine = self._driver.machine
        return RunStateMessage(
            stage=machine.stage,
            reason=machine.reason,
            root_cause=machine.root_cause,
            result=None if machine.result is None else dict(machine.result),
            waiting_for=machine.waiting_for(),
        )


def _address_of(context: Any) -> str:
    """The address of the peer of a call, without its port."""
    return str(context.peer()).partition(":")[2].rpartition(":")[0]
