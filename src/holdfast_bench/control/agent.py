"""An agent as its coordinator sees it: the real state machine, over a real stream, without workers.

Workers are only played: they halt at once when they must, and their steps are made up.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import grpc

from holdfast.arena.memory import Phase
from holdfast.coordinator.outbox import Outbox
from holdfast.coordinator.service import REPEAT_S
from holdfast.core import actions, events
from holdfast.core.agent import AgentStateMachine
from holdfast.core.protocol import Failure, Probe, Stage, Status, WorkerProgress
from holdfast.wire.join import Joined
from holdfast.wire.probe import accepts
from holdfast.wire.rpc import OPTIONS, SERVER_NAME, Service, StatusMessage

RECONNECT_S: Final = 0.02
ASKED_EVERY: Final = 25
"""One status in so many is answered, which is timed."""
_NUMERICS: Final = {
    "torch": "2.13.0+cpu",
    "device": "cpu",
    "fp32_precision": "ieee",
    "processor": "AMD EPYC",
    "capability": "AVX2",
}
_PHASES_S: Final = {phase.name.lower(): 12.345678 for phase in Phase}


class PlayedAgent:
    """One agent.

    Args:
        joined: Its name and certificates.
        control: Address of the coordinator's gRPC service.
        heartbeat_s: Interval of its statuses, seconds.
        began: When it joined, seconds of the monotonic clock: its heartbeats follow in intervals.
        asked_from: Which of its statuses is answered first; others follow after ASKED_EVERY.
        on_resumed: Called with a generation once its worker was resumed in it.

    Attributes:
        sent: Statuses sent so far.
        delays: Seconds from sending a status to its answer, for those that are answered.
        broken: Streams that broke.
    """

    def __init__(
        self,
        joined: Joined,
        control: str,
        heartbeat_s: float,
        began: float,
        asked_from: int,
        on_resumed: Callable[[int], None],
    ) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.name = joined.message.name
        assert joined.credentials.agent is not None
        self._credentials = joined.credentials.agent
        self._control = control
        self._address = address
        self._asked_from = asked_from
        self._on_resumed = on_resumed
        self._machine = AgentStateMachine(self.name, 1, heartbeat_s, began, address)
        self._events: deque[events.AgentEvent] = deque()
        self._workers: dict[int, int] = {}  # process by rank
        self._committed: int | None = None
        self._outbox = Outbox[StatusMessage]()
        self._newest: StatusMessage | None = None
        self._asked_at: float | None = None
        self._heard_at = 0.0
        self._probing: set[asyncio.Task[None]] = set()
        self.sent = 0
        self.broken = 0
        self.delays: list[float] = []

    async def run(self) -> None:
        """Take part until the run is over, or this is cancelled."""
        beating = asyncio.create_task(self._beat())
        try:
            async with grpc.aio.secure_channel(
                self._control,
                grpc.ssl_channel_credentials(
                    self._credentials.authority.encode(),
                    self._credentials.key.encode(),
                    self._credentials.certificate.encode(),
                ),
                options=(*OPTIONS, ("grpc.ssl_target_name_override", SERVER_NAME)),
            ) as channel:
                while self._machine.stage != Stage.END:
                    await self._attend(Service(channel))  # type: ignore[arg-type]  # the same calls
        finally:
            beating.cancel()
            self._listener.close()

    def fail_worker(self) -> None:
        """Let its worker exit."""
        ((rank, process),) = self._workers.items()
        self._handle(events.WorkerExited(rank, process, Failure(cause="exited with status 1")))

    async def _attend(self, service: Service) -> None:
        """Keep a stream until it ends."""
        call: Any = service.attend(self._outgoing(), wait_for_ready=True)  # type: ignore[arg-type]
        if self._newest is not None:
            self._outbox.put(self._newest)
        with suppress(grpc.aio.AioRpcError):
            async for message in call:
                self._heard_at = time.monotonic()
                if self._asked_at is not None:
                    self.delays.append(self._heard_at - self._asked_at)
                    self._asked_at = None
                self._handle(events.DesiredStateReceived(message.desired))
        if self._machine.stage != Stage.END:
            self.broken += 1
            await asyncio.sleep(RECONNECT_S)

    async def _outgoing(self) -> AsyncIterator[StatusMessage]:
        while (message := await self._outbox.get()) is not None:
            self.sent += 1
            yield message

    async def _beat(self) -> None:
        """Send heartbeats."""
        while (due := self._machine.next_deadline()) is not None:
            await asyncio.sleep(due - time.monotonic())
            self._handle(events.Tick())

    def _handle(self, event: events.AgentEvent) -> None:
        self._events.append(event)
        if len(self._events) > 1:
            return
        while self._events:
            for action in self._machine.handle(self._events[0], time.monotonic()):
                self._perform(action)
            self._events.popleft()

    def _perform(self, action: actions.AgentAction) -> None:
        match action:
            case actions.SendStatus(status):
                self._send(status)
            case actions.ForkWorker(rank, generation, process):
                self._workers[rank] = process
                self._halt(rank, generation)
            case actions.Abort(generation):
                for rank in self._workers:
                    self._halt(rank, generation)
            case actions.KillWorker(rank, process):
                self._workers.pop(rank, None)
                self._handle(events.WorkerExited(rank, process, Failure(cause="was killed")))
            case actions.FindCheckpoint(generation):
                self._handle(events.CheckpointFound(generation, None))
            case actions.ResumeWorkers(generation, start):
                self._committed = start.step + 1
                self._on_resumed(generation)
            case actions.ProbeHost(probe):
                task = asyncio.create_task(self._probe(probe))
                self._probing.add(task)
                task.add_done_callback(self._probing.discard)
            case _:
                pass  # nothing to abort, to save or to shut down

    def _halt(self, rank: int, generation: int) -> None:
        halted = events.WorkerHalted(rank, generation, self._committed, 0, self._address, _NUMERICS)
        self._handle(halted)

    def _send(self, status: Status) -> None:
        """Send a status; now and then as if its agent had missed the newest desired state, which is
        the coordinator's answer.
        """
        progress = {rank: _progress(self._committed or 0) for rank in self._workers}
        now = time.monotonic()
        is_due = status.number % ASKED_EVERY == self._asked_from
        # The coordinator does not say the same twice within a few seconds.
        if is_due and status.stage == Stage.RUN and now > self._heard_at + REPEAT_S:
            status = replace(status, stage=Stage.HALT)
            self._asked_at = now
        self._newest = StatusMessage(status=replace(status, progress=progress))
        self._outbox.put(self._newest)

    async def _probe(self, probe: Probe) -> None:
        loop = asyncio.get_running_loop()
        is_reached = await loop.run_in_executor(None, accepts, probe.address)
        self._handle(events.ProbeCompleted(probe.number, is_reached))


def _progress(step: int) -> WorkerProgress:
    return WorkerProgress(
        step=step,
        total_steps=100_000,
        epoch=1,
        epochs=10,
        loss=1.2345678,
        samples=1_000_000,
        phase="backward",
        phase_seconds=_PHASES_S,
    )
