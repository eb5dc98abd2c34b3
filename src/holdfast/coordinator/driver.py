"""Driver: gives the coordinator's machine events and a clock, and performs what it asks for."""

from __future__ import annotations

import time
from collections.abc import Callable

from holdfast.coordinator.checkpoints import Checkpoints
from holdfast.coordinator.journal import Journal
from holdfast.core.actions import Commit, Record, Send, Sweep
from holdfast.core.coordinator import Run
from holdfast.core.events import RunEvent, Settled
from holdfast.core.policy import Policy
from holdfast.core.protocol import Orders, Stage
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
        policy: Policy,
        journal: Journal,
        checkpoints: Checkpoints,
        log: EventLog,
        send: Callable[[str, Orders], None],
    ) -> None:
        self._journal, self._checkpoints, self._send = journal, checkpoints, send
        self._log = log
        self.run = Run(policy, journal.facts(), time.monotonic(), checkpoints.newest)

    def tell(self, event: RunEvent) -> None:
        """Have the machine take note of `event`.

        Raises:
            HoldfastError: The journal cannot be written.
        """
        before = self.run.stage
        wanted = self.run.handle(event, time.monotonic())
        if (before, self.run.stage) == (Stage.IDLE, Stage.RUN):  # all have gone on without us
            self._log.event("coordinator-back", generation=self.run.generation)
        if before == Stage.IDLE and self._is_past_restoring:  # the one before us may not have
            self._checkpoints.delete_old()
        for action in wanted:
            match action:
                case Record(fact):
                    self._journal.record(fact)
                case Send(host, orders):
                    self._send(host, orders)
                case Commit():
                    self.tell(Settled(self._checkpoints.commit(action)))
                case Sweep():
                    self._checkpoints.sweep()

    @property
    def _is_past_restoring(self) -> bool:
        """Whether workers train, or have finished."""
        run = self.run
        return run.stage == Stage.RUN or (run.stage == Stage.END and not run.reason)

    def wait_s(self) -> float | None:
        """How long until a tick is due; None if none is."""
        due = self.run.next_deadline()
        return None if due is None else max(0.0, due - time.monotonic())
