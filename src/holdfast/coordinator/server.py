"""Server: turns what agents and commands say into events, and orders into what they are told."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, Generic, TypeVar

import grpc

from holdfast.coordinator.checkpoints import Checkpoints
from holdfast.coordinator.driver import Driver
from holdfast.coordinator.journal import Journal
from holdfast.core.events import (
    AgentLost,
    Disconnected,
    ProgressRequested,
    RunEvent,
    StatusReceived,
    StopReceived,
    Tick,
)
from holdfast.core.policy import RecoveryPolicy
from holdfast.core.protocol import DesiredState, Stage, WorkerProgress
from holdfast.errors import HoldfastError
from holdfast.observe.lines import EventLog
from holdfast.wire.messages import Message
from holdfast.wire.rpc import (
    OPTIONS,
    DesiredStateMessage,
    RunRequestMessage,
    RunStateMessage,
    StatusMessage,
    handlers,
)

LATE_S: Final = 1.0
"""A look at the time that comes later than this was kept waiting, and reports with it."""
SHOW_INTERVAL_S: Final = 0.1
"""How often commands are told of progress alone, at most."""

Sent = TypeVar("Sent", bound=Message)


class _Outbox(Generic[Sent]):
    """The newest message that a client has not been sent."""

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
        """The next one; None at the end."""
        await self._ready.wait()
        self._ready.clear()
        return None if self._over else self._newest


class Server:
    """One run's coordinator.

    Args:
        policy: What the user wants to happen.
        journal: What outlives this process.
        checkpoints: Those of the run.
        log: The run's log of events.
    """

    def __init__(
        self, policy: RecoveryPolicy, journal: Journal, checkpoints: Checkpoints, log: EventLog
    ) -> None:
        self._driver = Driver(policy, journal, checkpoints, log, self._send)
        self._agents: dict[str, _Outbox[DesiredStateMessage]] = {}
        self._watchers: list[_Outbox[RunStateMessage]] = []
        self._progress: dict[str, Mapping[int, WorkerProgress]] = {}  # by host
        self._shown: RunStateMessage | None = None
        self._show_at = 0.0
        self._tick: asyncio.TimerHandle | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(self, address: str) -> None:
        """Serve until the run is over and a command that has heard so leaves.

        Args:
            address: As gRPC names it.

        Raises:
            HoldfastError: The address cannot be had, or the journal cannot be written.
        """
        server = grpc.aio.server(options=OPTIONS)
        server.add_generic_rpc_handlers((handlers(self._attend, self._watch),))
        mask = os.umask(0o177)  # a socket with a path is for its owner, whatever his files are
        try:
            server.add_insecure_port(address)
        except RuntimeError as error:
            raise HoldfastError(
                f"the coordinator cannot listen at {address}: {error}; see that its directory is "
                "writable, on a disk that has room and can hold sockets"
            ) from None
        finally:
            os.umask(mask)
        await server.start()
        self._wake_when_due()
        try:
            await self._ended
        finally:
            await server.stop(None)

    async def _attend(
        self, reports: AsyncIterator[StatusMessage], _: Any
    ) -> AsyncIterator[DesiredStateMessage]:
        """One agent, for as long as its stream lasts."""
        outbox = _Outbox[DesiredStateMessage]()
        listening = asyncio.create_task(self._listen(reports, outbox))
        try:
            while (command := await outbox.get()) is not None:
                yield command
        finally:
            listening.cancel()
            for host in [name for name, own in self._agents.items() if own is outbox]:
                del self._agents[host]
                self._tell(Disconnected(host))

    async def _listen(
        self, reports: AsyncIterator[StatusMessage], outbox: _Outbox[DesiredStateMessage]
    ) -> None:
        try:
            async for report in reports:
                self._agents[report.status.host] = outbox
                self._progress[report.status.host] = report.status.progress
                self._tell(StatusReceived(report.status))
        finally:
            outbox.close()

    async def _watch(
        self, wishes: AsyncIterator[RunRequestMessage], _: Any
    ) -> AsyncIterator[RunStateMessage]:
        """One command, for as long as its stream lasts."""
        outbox = _Outbox[RunStateMessage]()
        outbox.put(self._with_progress(self._state()))
        self._watchers.append(outbox)
        granting = asyncio.create_task(self._grant(wishes, outbox))
        over = False
        try:
            while (state := await outbox.get()) is not None:
                over = state.stage == Stage.END
                yield state
        finally:
            granting.cancel()
            self._watchers.remove(outbox)
            if over and not self._ended.done():
                self._ended.set_result(None)

    async def _grant(
        self, wishes: AsyncIterator[RunRequestMessage], outbox: _Outbox[RunStateMessage]
    ) -> None:
        try:
            async for wish in wishes:
                for host in wish.lost:
                    self._tell(AgentLost(host))
                if wish.stop:
                    self._tell(StopReceived())
                if wish.watch:
                    self._tell(ProgressRequested())
        finally:
            outbox.close()

    def _send(self, host: str, orders: DesiredState) -> None:
        if host in self._agents:  # else it hears them when it reports again
            self._agents[host].put(DesiredStateMessage(desired=orders))

    def _tell(self, event: RunEvent) -> None:
        """Have the machine take note of `event`, and all watchers of what has changed."""
        try:
            self._driver.handle(event)
        except Exception as error:  # noqa: BLE001  # it ends the process, and is its last word
            if not self._ended.done():
                self._ended.set_exception(error)
            return
        self._show()
        self._wake_when_due()

    def _show(self) -> None:
        """Tell all watchers of what has changed, and of progress every now and then."""
        state, now = self._state(), asyncio.get_running_loop().time()
        is_due = self._driver.machine.watched and now >= self._show_at
        if state == self._shown and not is_due:
            return
        self._shown, self._show_at = state, now + SHOW_INTERVAL_S
        for watcher in self._watchers:
            watcher.put(self._with_progress(state))

    def _wake_when_due(self) -> None:
        """Have the machine look at the time when it wants to."""
        if self._tick is not None:
            self._tick.cancel()
        wait_s = self._driver.wait_s()
        if wait_s is not None:
            loop = asyncio.get_running_loop()
            self._tick = loop.call_later(wait_s, self._look_at_time, loop.time() + wait_s)

    def _look_at_time(self, due: float) -> None:
        """Let the machine see what time it is, unless agents could not be heard before that."""
        loop = asyncio.get_running_loop()
        if loop.time() > due + LATE_S:  # a slow disk, say: hear first what has come meanwhile
            self._tick = loop.call_later(LATE_S, self._tell, Tick())
        else:
            self._tell(Tick())

    def _with_progress(self, state: RunStateMessage) -> RunStateMessage:
        found = {
            rank: self._progress[host][rank]
            for rank, host in self._driver.machine.members.items()
            if rank in self._progress.get(host, {})
        }
        return state.model_copy(update={"progress": found})

    def _state(self) -> RunStateMessage:
        run = self._driver.machine
        return RunStateMessage(
            stage=run.stage,
            reason=run.reason,
            root_cause=run.root_cause,
            result=None if run.result is None else dict(run.result),
            waiting_for=run.waiting_for(),
        )
