"""Driver: gives the coordinator's machine events and a clock, and performs what it asks for."""

from __future__ import annotations

import time
from collections.abc import Callable

from holdfast.coordinator.checkpoints import Checkpoints
from holdfast.coordinator.journal import Journal
from holdfast.core.actions import (
    AppendToJournal,
    CommitCheckpoint,
    FindCheckpoint,
    RemovePartialCheckpoints,
    SendDesiredState,
)
from holdfast.core.coordinator import CoordinatorStateMachine
from holdfast.core.events import RunEvent
from holdfast.core.policy import RecoveryPolicy
from holdfast.core.protocol import DesiredState, Stage
from holdfast.observe.lines import EventLog


class Driver:
    """One run's.

    Args:
        policy: What the user wants to happen.
        journal: What was recorded by those before, and is to be by this one.
        checkpoints: Those of the run.
        log: The run's log of events.
        send: Called with an agent's name and orders for it.

    Attributes:
        run: The machine.
    """

    def __init__(
        self,
        policy: RecoveryPolicy,
        journal: Journal,
        checkpoints: Checkpoints,
        log: EventLog,
        send: Callable[[str, DesiredState], None],
    ) -> None:
        self._journal, self._checkpoints, self._send = journal, checkpoints, send
        self._log = log
        self.machine = CoordinatorStateMachine(policy, journal.entries(), time.monotonic())

    def handle(self, event: RunEvent) -> None:
        """Have the machine take note of `event`.

        Raises:
            HoldfastError: The journal cannot be written.
        """
        before = self.machine.stage
        wanted = self.machine.handle(event, time.monotonic())
        if (before, self.machine.stage) == (Stage.IDLE, Stage.RUN):  # all have gone on without us
            self._log.event("coordinator-recovered", generation=self.machine.generation)
        if before == Stage.IDLE and self._is_past_restoring:  # the one before us may not have
            self._checkpoints.delete_old()
        for action in wanted:
            match action:
                case AppendToJournal(fact):
                    self._journal.append(fact)
                case SendDesiredState(host, orders):
                    self._send(host, orders)
                case CommitCheckpoint():
                    self.handle(self._checkpoints.commit(action))
                case FindCheckpoint():
                    self.handle(self._checkpoints.find_newest())
                case RemovePartialCheckpoints():
                    self._checkpoints.remove_partial()

    @property
    def _is_past_restoring(self) -> bool:
        """Whether workers train, or have finished."""
        run = self.machine
        return run.stage == Stage.RUN or (run.stage == Stage.END and not run.reason)

    def wait_s(self) -> float | None:
        """How long until a tick is due; None if none is."""
        due = self.machine.next_deadline()
        return None if due is None else max(0.0, due - time.monotonic())
