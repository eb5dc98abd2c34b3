"""Driver: passes events and the time to the coordinator's machine, and performs its actions."""

from __future__ import annotations

import time
from collections.abc import Callable

from holdfast.coordinator.journal import Journal
from holdfast.core.actions import AppendToJournal, ProbeHost, RefuseHost, SendDesiredState
from holdfast.core.debug_log import DebugLog
from holdfast.core.events import RunEvent, Tick
from holdfast.core.protocol import DesiredState, Probe, Stage
from holdfast.rundir.json_lines import EventLog


class Driver:
    """The driver of one run's machine.

    Args:
        debug_log: The machine, and where its events are recorded.
        journal: The entries of earlier coordinators of this run; new ones are appended.
        log: The run's log of events.
        send: Called with the name of an agent and its desired state.
        probe: Called with a probe to begin.
        refuse: Called with the name of an agent that must end, and why.

    Attributes:
        machine: The coordinator's machine.
    """

    def __init__(
        self,
        debug_log: DebugLog,
        journal: Journal,
        log: EventLog,
        send: Callable[[str, DesiredState], None],
        probe: Callable[[Probe], None],
        refuse: Callable[[str, str], None],
    ) -> None:
        self._journal = journal
        self._log = log
        self._send = send
        self._probe = probe
        self._refuse = refuse
        self._debug_log = debug_log
        self.machine = debug_log.machine

    def handle(self, event: RunEvent) -> None:
        """Pass `event` to the machine and perform the actions that it returns, in order.

        Raises:
            HoldfastError: The journal cannot be written.
        """
        before = self.machine.stage
        members = self.machine.members
        hosts = [*self.machine.hosts]
        actions = self._debug_log.handle(event, time.monotonic())
        if (before, self.machine.stage) == (Stage.IDLE, Stage.RUN):  # the workers kept training
            self._log.event("coordinator-recovered", generation=self.machine.generation)
        if isinstance(event, Tick):  # else something has ended, and its exit is logged
            for host in hosts:
                if host not in self.machine.hosts:
                    ranks = [rank for rank, its in members.items() if its == host]
                    self._log.event("host-lost", host=host, ranks=ranks)
        for action in actions:
            match action:
                case AppendToJournal(entry):
                    self._journal.append(entry)
                case SendDesiredState(host, desired):
                    self._send(host, desired)
                case ProbeHost(probe):
                    self._probe(probe)
                case RefuseHost(host, reason):
                    self._refuse(host, reason)

    def wait_s(self) -> float | None:
        """Seconds until a tick is due; None if none is."""
        due = self.machine.next_deadline()
        return None if due is None else max(0.0, due - time.monotonic())
