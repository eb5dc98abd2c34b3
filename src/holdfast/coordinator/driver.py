"""Driver: gives the coordinator's machine events and a clock, and performs what it asks for."""

from __future__ import annotations

import time
from collections.abc import Callable

from holdfast.coordinator.journal import Journal
from holdfast.core.actions import Record
from holdfast.core.events import RunEvent, Tick
from holdfast.core.protocol import Orders
from holdfast.core.run import Policy, Run


class Driver:
    """One run's.

    Args:
        policy: What the user wants to happen.
        journal: What was recorded by those before, and is to be by this one.
        send: Called with an agent's name and orders for it.

    Attributes:
        run: The machine.
    """

    def __init__(
        self, policy: Policy, journal: Journal, send: Callable[[str, Orders], None]
    ) -> None:
        self._journal, self._send = journal, send
        self.run = Run(policy, journal.facts(), time.monotonic())

    def tell(self, event: RunEvent) -> None:
        """Have the machine take note of `event`.

        Raises:
            HoldfastError: The journal cannot be written.
        """
        for action in self.run.handle(event, time.monotonic()):
            if isinstance(action, Record):
                self._journal.record(action.fact)
            else:
                self._send(action.host, action.orders)

    def wait_s(self) -> float | None:
        """How long until a tick is due; None if none is."""
        due = self.run.next_deadline()
        return None if due is None else max(0.0, due - time.monotonic())

    def tick(self) -> None:
        """Let the machine see what time it is."""
        self.tell(Tick())
