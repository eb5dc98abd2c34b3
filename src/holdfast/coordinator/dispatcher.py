"""Dispatcher: passes events and the time to the coordinator's machine, and performs its actions.

    RPC handlers, probes, ticks ── event ─▶ machine ── actions ─▶ journal, outboxes, probes

It decides nothing. All of it runs in one event loop, so an event is handled, and its actions are
performed, before the next one is.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from holdfast.coordinator.journal import Journal
from holdfast.coordinator.replicated_journal import ReplicatedJournal
from holdfast.core.actions import (
    AppendToJournal,
    ProbeHost,
    RefuseHost,
    RunAction,
    SendDesiredState,
)
from holdfast.core.debug_log import DebugLog
from holdfast.core.events import ProbeCompleted, RunEvent, Tick
from holdfast.core.protocol import DesiredState, Probe, Stage
from holdfast.rundir.json_lines import EventLog
from holdfast.wire.probe import accepts

MAX_TICK_DELAY_S: Final = 1.0
"""A tick that is later than this was held up, and the messages of agents with it."""
MAX_PROBES: Final = 64
"""Probes at a time."""


class Dispatcher:
    """The driver of one run's machine, in the running event loop.

    Args:
        debug_log: The machine, and where its events are recorded.
        journal: Decisions are appended to it before they take effect.
        log: The run's log of events.
        send: Called with the name of an agent and its desired state.
        refuse: Called with the name of an agent that must end, and why.
        on_handled: Called after each event, once its actions are performed.

    Attributes:
        machine: The coordinator's machine.
        ended: Done once the process may end; has the exception if it must.
    """

    def __init__(
        self,
        debug_log: DebugLog,
        journal: Journal | ReplicatedJournal,
        log: EventLog,
        send: Callable[[str, DesiredState], None],
        refuse: Callable[[str, str], None],
        on_handled: Callable[[], None],
    ) -> None:
        self._journal = journal
        self._log = log
        self._send = send
        self._refuse = refuse
        self._on_handled = on_handled
        self._debug_log = debug_log
        self._probers = ThreadPoolExecutor(MAX_PROBES, "holdfast-probe")
        self._probing: set[asyncio.Task[None]] = set()
        self._look: asyncio.TimerHandle | None = None
        self._looks_at = math.inf
        self.machine = debug_log.machine
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tell(self, event: RunEvent) -> None:
        """Pass `event` to the machine, and perform the actions that it returns, in order."""
        try:
            self._handle(event)
        except Exception as error:  # noqa: BLE001  # it ends the process
            self.fail(error)
            return
        self._on_handled()
        self.wake_when_due()

    def end(self) -> None:
        """Let the process end."""
        if not self.ended.done():
            self.ended.set_result(None)

    def fail(self, error: Exception) -> None:
        """Let the process end with an error."""
        if not self.ended.done():
            self.ended.set_exception(error)

    def close(self) -> None:
        """Begin no more probes."""
        self._probers.shutdown(cancel_futures=True)

    def wake_when_due(self) -> None:
        """Schedule the machine's next tick, unless there is an earlier look at the time."""
        due = self.machine.next_deadline()
        if due is None or due >= self._looks_at:
            return
        if self._look is not None:
            self._look.cancel()
        self._looks_at = due
        wait_s = max(0.0, due - time.monotonic())
        loop = asyncio.get_running_loop()
        self._look = loop.call_later(wait_s, self._look_at_time, loop.time() + wait_s)

    def _handle(self, event: RunEvent) -> None:
        before = self.machine.stage
        members = self.machine.members
        hosts = [*self.machine.hosts] if isinstance(event, Tick) else []
        actions = self._debug_log.handle(event, time.monotonic())
        if (before, self.machine.stage) == (Stage.IDLE, Stage.RUN):  # the workers kept training
            self._log.event("coordinator-recovered", generation=self.machine.generation)
        for host in hosts:  # else something has ended, and its exit is logged
            if host not in self.machine.hosts:
                ranks = [rank for rank, its in members.items() if its == host]
                self._log.event("host-lost", host=host, ranks=ranks)
        # An entry is durable before a later action tells any agent of it.
        for action in actions:
            self._perform(action)

    def _perform(self, action: RunAction) -> None:
        match action:
            case AppendToJournal(entry):
                # It waits for the disk or for other hosts, and no event is handled meanwhile: what
                # follows from the entry must not happen before it is durable.
                self._journal.append(entry)
            case SendDesiredState(host, desired):
                self._send(host, desired)
            case ProbeHost(probe):
                self._probe(probe)
            case RefuseHost(host, reason):
                self._refuse(host, reason)

    def _probe(self, probe: Probe) -> None:
        """Begin a probe of a host."""
        task = asyncio.get_running_loop().create_task(self._look_at_host(probe))
        self._probing.add(task)  # else nothing holds it
        task.add_done_callback(self._probing.discard)

    async def _look_at_host(self, probe: Probe) -> None:
        loop = asyncio.get_running_loop()
        # In a thread: a host that does not answer takes tenths of a second.
        is_reached = await loop.run_in_executor(self._probers, accepts, probe.address)
        self._log.event("host-probed", host=probe.host, answered=is_reached)
        self.tell(ProbeCompleted(probe.number, is_reached))

    def _look_at_time(self, due: float) -> None:
        """Send the machine a tick if it is due by now, unless messages of agents may have been held
        up.
        """
        loop = asyncio.get_running_loop()
        self._looks_at = math.inf
        if loop.time() > due + MAX_TICK_DELAY_S:  # by a slow disk, say: read those messages first
            self._looks_at = -math.inf  # nothing looks at the time before
            again = loop.time() + MAX_TICK_DELAY_S
            self._look = loop.call_at(again, self._look_at_time, again)
            return
        newest = self.machine.next_deadline()
        if newest is not None and newest <= time.monotonic():
            self.tell(Tick())
        else:
            self.wake_when_due()
