"""Strike: one fault of a storm, which waits until it can strike.

Signals and damage come from outside, once as many steps are committed as the fault says. What a
worker is to suffer by its own hand is ordered beforehand, so that it happens in the very step; but
not long before, for only one order of a kind can be pending, and others may come due first.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

from holdfast.arena.fault_requests import FaultRequests, InProcessFault
from holdfast.arena.memory import Arena
from holdfast.checkpoint.store import CheckpointStore
from holdfast.faults.plan import Fault
from holdfast.faults.target import Target

AHEAD_STEPS: Final = 16
"""How long before its step something is ordered: more than pass between two looks."""

_INJECTIONS: Final = {
    "exit": InProcessFault.EXIT,
    "raise": InProcessFault.RAISE,
    "slow": InProcessFault.SLOW,
    "nan": InProcessFault.NAN,
    "flip": InProcessFault.FLIP,
    "disk-full": InProcessFault.DISK_FULL,
    "corrupt-replica": InProcessFault.CORRUPT,
}
_MISSING: Final = {
    "nan": "computed no gradient",
    "flip": "computed no gradient other than zeros",
    "disk-full": "wrote no checkpoint",
}
"""What a worker has not done that it would have obeyed at."""


class PendingFault:
    """One of `fault`, all of which is known.

    Args:
        fault: The same.
        note: Called when it strikes; before anybody can see what comes of a signal.

    Attributes:
        fault: The same.
        step: How many steps were committed when it struck.
    """

    def __init__(self, fault: Fault, note: Callable[[PendingFault], None]) -> None:
        self.fault, self.step, self._note = fault, 0, note
        self._why = ""  # it has not struck yet, though it is time
        self._given: tuple[Arena, FaultRequests, int] | None = None

    def attempt(self, target: Target, elapsed_s: float) -> bool:
        """Strike if it is time to, and if that can be; returns whether it has struck.

        Args:
            target: The run.
            elapsed_s: Since it was first seen to train.
        """
        fault, injection = self.fault, _INJECTIONS.get(self.fault.kind)
        late = fault.after_s is None or elapsed_s >= fault.after_s
        if injection is None:
            return late and target.reached >= (fault.step or 0) and self._strike(target)
        if self._note_if_obeyed(injection):
            return True
        if late and target.reached >= (fault.step or 0) - AHEAD_STEPS:
            self._order(injection, target)
        return False

    def call_off(self) -> bool:
        """Order it no longer; returns whether it has struck all the same, at the very end."""
        injection = _INJECTIONS.get(self.fault.kind)
        if injection is None or self._given is None:
            return False
        self._given[1].withdraw(injection)
        return self._note_if_obeyed(injection)

    def reason_missed(self, target: Target, end: str) -> str:
        """Why it has not struck.

        Args:
            target: The run.
            end: What has ended, in words.
        """
        step = self.fault.step or 0
        if step > target.total_steps > 0:
            return f"the run has no more than {target.total_steps} steps"
        if step > target.reached:
            return f"{end} before that"
        return self._why or f"{end} before that"

    def _note_if_obeyed(self, injection: InProcessFault) -> bool:
        """Note that it has struck if a worker has obeyed; returns whether."""
        if self._given is None:
            return False
        _, injections, number = self._given
        obeyed, self.step = injections.acknowledged(injection)
        if obeyed < number:
            return False
        self._note(self)
        return True

    def _order(self, injection: InProcessFault, target: Target) -> None:
        """Order a worker to suffer it, once; the agent that comes after a lost one has an arena of
        its own, in which no order is.
        """
        rank, kind = self.fault.rank, self.fault.kind
        assert rank is not None
        if target.arena is None or (self._given and self._given[0] is target.arena):
            return
        injections = FaultRequests(target.arena, rank)
        if injections.is_pending(injection):
            self._why = f"another {kind} was still to strike rank {rank}"
            return
        number = injections.request(
            injection, step=self.fault.step or 0, seconds=self.fault.lasts_s
        )
        self._given = target.arena, injections, number
        self._why = f"rank {rank} {_MISSING.get(kind, 'began no step')} from then on"

    def _strike(self, target: Target) -> bool:
        """Strike from outside; returns whether that could be."""
        fault, self.step = self.fault, target.reached
        who = fault.kind if fault.rank is None else fault.rank
        if fault.kind == "corrupt-checkpoint":
            self._why = _damage(target.run_dir)
        elif not target.has(who):
            name = f"the {who}" if fault.rank is None else f"rank {who}"
            self._why = f"{name} was not alive"
        else:
            self._why = ""
        if self._why:
            return False
        # Before the signal: whoever tells of the loss does so within a millisecond.
        self._note(self)
        if fault.kind != "corrupt-checkpoint":
            target.send(signal.SIGSTOP if fault.kind == "stop" else signal.SIGKILL, who)
        return True


def _damage(run_dir: Path) -> str:
    """Turn round the last byte of the largest part of the newest checkpoint, which is always of the
    state; returns why that could not be.
    """
    store = CheckpointStore.of_run(run_dir)
    for newest in store.committed()[:1]:
        directory = Path(store.location(newest))
        try:
            part = max(directory.glob("part-*"), key=lambda path: path.stat().st_size)
            with part.open("r+b") as file:
                file.seek(-1, os.SEEK_END)
                last = file.read(1)[0]
                file.seek(-1, os.SEEK_END)
                file.write(bytes([last ^ 0xFF]))
        except (OSError, ValueError) as error:  # it has just been removed, for instance
            return f"{directory}: {error}"
        return ""
    return "there was no checkpoint"
