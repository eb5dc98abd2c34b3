"""Strike: one fault of a storm, which waits until it can strike.

Signals and damage come from outside, once as many steps are committed as the fault says. What a
worker is to suffer by its own hand is ordered beforehand, so that it happens in the very step.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final

from holdfast.arena.memory import Arena
from holdfast.arena.orders import Order, Orders
from holdfast.checkpoint import manifest
from holdfast.faults.plan import Fault
from holdfast.faults.target import AGENT, COORDINATOR, Target

_ORDERS: Final = {
    "exit": Order.EXIT,
    "raise": Order.RAISE,
    "slow": Order.SLOW,
    "nan": Order.NAN,
    "flip": Order.FLIP,
    "disk-full": Order.DISK_FULL,
}
_MISSING: Final = {
    "nan": "computed no gradient",
    "flip": "computed no gradient other than zeros",
    "disk-full": "wrote no checkpoint",
}
"""What a worker has not done that it would have obeyed at."""


class Strike:
    """One of `fault`, all of which is known.

    Attributes:
        fault: The same.
        step: How many steps were committed when it struck.
    """

    def __init__(self, fault: Fault) -> None:
        self.fault, self.step = fault, 0
        self._why = ""  # it has not struck yet, though it is time
        self._given: tuple[Arena, Orders, int] | None = None

    def attempt(self, target: Target, elapsed_s: float) -> bool:
        """Strike if it is time to, and if that can be; returns whether it has struck.

        Args:
            target: The run.
            elapsed_s: Since it was first seen to train.
        """
        fault, ordered = self.fault, _ORDERS.get(self.fault.kind)
        late = fault.after_s is None or elapsed_s >= fault.after_s
        if ordered is not None:
            return self.has_been_obeyed() or (late and self._order(ordered, target))
        if not late or target.reached < (fault.step or 0):
            return False
        self.step = target.reached
        self._why = self._from_outside(target)
        return not self._why

    def has_been_obeyed(self) -> bool:
        """Whether a worker was ordered to suffer it, and has."""
        if self._given is None:
            return False
        _, orders, number = self._given
        obeyed, step = orders.obeyed(_ORDERS[self.fault.kind])
        self.step = step
        return obeyed >= number

    def call_off(self) -> None:
        """Order it no longer."""
        if self._given is not None:
            self._given[1].withdraw(_ORDERS[self.fault.kind])

    def reason_missed(self, target: Target) -> str:
        """Why it has not struck, now that the run is over."""
        if self.fault.step is not None and self.fault.step > target.total_steps > 0:
            return f"the run has no more than {target.total_steps} steps"
        return self._why or "the run ended before that"

    def _order(self, order: Order, target: Target) -> bool:
        """Order a worker to suffer it, once; the agent that comes after a lost one has an arena of
        its own, in which no order is.
        """
        assert self.fault.rank is not None
        if target.arena is None or (self._given and self._given[0] is target.arena):
            return False
        orders = Orders(target.arena, self.fault.rank)
        missing = _MISSING.get(self.fault.kind, "began no step")
        self._why = f"rank {self.fault.rank} {missing} from then on"
        if not orders.is_pending(order):
            number = orders.give(order, step=self.fault.step or 0, seconds=self.fault.lasts_s)
            self._given = target.arena, orders, number
        return False

    def _from_outside(self, target: Target) -> str:
        """Strike; returns why it could not be."""
        match self.fault.kind:
            case "damage":
                return _damage(target.run_dir / "checkpoints")
            case "coordinator":
                who: str | int = COORDINATOR
            case "agent":
                who = AGENT
            case _:
                assert self.fault.rank is not None
                who = self.fault.rank
        number = signal.SIGSTOP if self.fault.kind == "stop" else signal.SIGKILL
        name = f"rank {who}" if isinstance(who, int) else f"the {who}"
        return "" if target.send(number, who) else f"{name} was not alive"


def _damage(checkpoints: Path) -> str:
    """Turn round the last byte of the largest part of the newest checkpoint, which is always of the
    state; returns why that could not be.
    """
    for newest in manifest.committed(checkpoints)[:1]:
        try:
            part = max(newest.glob("part-*"), key=lambda path: path.stat().st_size)
            with part.open("r+b") as file:
                file.seek(-1, os.SEEK_END)
                last = file.read(1)[0]
                file.seek(-1, os.SEEK_END)
                file.write(bytes([last ^ 0xFF]))
        except (OSError, ValueError) as error:  # it has just been removed, for instance
            return f"{newest}: {error}"
        return ""
    return "there was no checkpoint"
