"""PendingFault: one fault of a plan, which waits until it can be injected.

Signals are sent, and checkpoints corrupted, from outside the run, once so many steps are committed
as the fault says. What only a worker can do to itself is requested before its step, so that it
happens in that very step; but not long before, because only one request of a kind can be pending,
and others may be due first.
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
"""How long before its step a fault is requested: more steps than pass between two looks."""

_IN_PROCESS: Final = {
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
    "flip": "computed only zero gradients",
    "disk-full": "wrote no checkpoint",
}
"""What a worker did not do, so that it did not reach the failpoint."""


class PendingFault:
    """One fault, with everything specified.

    Args:
        fault: The fault.
        note: Called when it is injected, before a signal can have an effect.

    Attributes:
        fault: The same.
        step: Number of steps that were committed when it was injected.
    """

    def __init__(self, fault: Fault, note: Callable[[PendingFault], None]) -> None:
        self.fault = fault
        self.step = 0
        self._note = note
        self._reason = ""  # why it has not been injected, though it is due
        self._requested: tuple[Arena, FaultRequests, int] | None = None

    def attempt(self, target: Target, elapsed_s: float) -> bool:
        """Inject the fault if it is due and can be injected; returns whether it has been.

        Args:
            target: The run.
            elapsed_s: Seconds since the run was first seen to train.
        """
        fault = self.fault
        kind = _IN_PROCESS.get(self.fault.kind)
        is_time = fault.after_s is None or elapsed_s >= fault.after_s
        if kind is None:
            return is_time and target.reached >= (fault.step or 0) and self._inject(target)
        if self._note_if_acknowledged(kind):
            return True
        if is_time and target.reached >= (fault.step or 0) - AHEAD_STEPS:
            self._request(kind, target)
        return False

    def withdraw(self) -> bool:
        """Withdraw the request; returns whether the worker has acknowledged it just before."""
        kind = _IN_PROCESS.get(self.fault.kind)
        if kind is None or self._requested is None:
            return False
        self._requested[1].withdraw(kind)
        return self._note_if_acknowledged(kind)

    def reason_missed(self, target: Target, end: str) -> str:
        """Why it was not injected.

        Args:
            target: The run.
            end: Words for what has ended.
        """
        step = self.fault.step or 0
        if step > target.total_steps > 0:
            return f"the run has no more than {target.total_steps} steps"
        if step > target.reached:
            return f"{end} before that"
        return self._reason or f"{end} before that"

    def _note_if_acknowledged(self, kind: InProcessFault) -> bool:
        """Note the fault if its worker has acknowledged the request; returns whether it has."""
        if self._requested is None:
            return False
        _, requests, number = self._requested
        acknowledged, self.step = requests.acknowledged(kind)
        if acknowledged < number:
            return False
        self._note(self)
        return True

    def _request(self, kind: InProcessFault, target: Target) -> None:
        """Request the fault from its worker, once for each arena: every agent has its own."""
        rank = self.fault.rank
        assert rank is not None
        if target.arena is None or (self._requested and self._requested[0] is target.arena):
            return
        requests = FaultRequests(target.arena, rank)
        if requests.is_pending(kind):
            self._reason = f"another {self.fault.kind} was still pending for rank {rank}"
            return
        number = requests.request(kind, step=self.fault.step or 0, seconds=self.fault.lasts_s)
        self._requested = target.arena, requests, number
        self._reason = f"rank {rank} {_MISSING.get(self.fault.kind, 'began no step')} after that"

    def _inject(self, target: Target) -> bool:
        """Inject from outside; returns whether that was possible."""
        fault = self.fault
        self.step = target.reached
        who = fault.kind if fault.rank is None else fault.rank
        if fault.kind == "corrupt-checkpoint":
            self._reason = _corrupt_newest(target.run_dir)
        elif not target.has(who):
            name = f"the {who}" if fault.rank is None else f"rank {who}"
            self._reason = f"{name} was not alive"
        else:
            self._reason = ""
        if self._reason:
            return False
        self._note(self)  # before the signal, whose effect is logged within a millisecond
        if fault.kind != "corrupt-checkpoint":
            target.send(signal.SIGSTOP if fault.kind == "stop" else signal.SIGKILL, who)
        return True


def _corrupt_newest(run_dir: Path) -> str:
    """Invert the last byte of the largest part of the newest checkpoint, which always belongs to
    the state; returns why that was not possible.
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
