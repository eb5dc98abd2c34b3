"""FaultInjector: injects the faults of a plan into one run, and reports which it missed.

It looks at the run every few milliseconds. A fault that is due waits until it can be injected, such
as for the replacement of a failed worker. It is missed if the run ends first.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from holdfast.arena.fault_requests import FaultRequests, InProcessFault
from holdfast.arena.memory import Arena
from holdfast.checkpoint.store import CheckpointStore
from holdfast.errors import HoldfastError
from holdfast.faults.plan import Fault, FaultPlan
from holdfast.faults.target import Target
from holdfast.job.spec import Job
from holdfast.rundir.json_lines import EventLog
from holdfast.rundir.run_directory import EVENTS

POLL_INTERVAL_S: Final = 0.003
DRAWN_STEPS: Final = 100
"""Steps among which one is drawn if the length of the run is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedFault:
    """A fault that was injected.

    Attributes:
        fault: The fault, with everything that was drawn.
        step: Steps committed then; None for a script.
    """

    fault: Fault
    step: int | None

    def as_dict(self) -> dict[str, Any]:
        """Plain data; `step` is when it was injected."""
        step = {} if self.step is None else {"step": self.step}
        return self.fault.model_dump(exclude_none=True) | step


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """A fault that was not injected, and why."""

    fault: Fault
    reason: str

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return self.fault.model_dump(exclude_none=True) | {"reason": self.reason}


class FaultInjector:
    """Injects a plan into one run, once.

    Args:
        plan: The faults.
        job: The run's job.

    Attributes:
        injected: Faults that were injected, in this order.
        missed: Faults that were not, once the injection is over.
        stopped: True if `stop` ended the injection.

    Raises:
        JobError: A fault cannot be injected into this job.
    """

    def __init__(self, plan: FaultPlan, job: Job) -> None:
        plan.check(
            workers=job.workers,
            counts_steps=job.records_progress,
            has_process_groups=job.has_process_groups,
        )
        self._plan = plan
        self._workers = job.workers
        self._counts_steps = job.records_progress
        self.injected: list[InjectedFault] = []
        self.missed: list[Missed] = []
        self.stopped = False

    @contextmanager
    def running(self, run_dir: Path) -> Iterator[None]:
        """Inject in a thread while the block runs a run in `run_dir`.

        Raises:
            HoldfastError: The injection failed, and the run did not.
        """
        over = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            injecting = pool.submit(self._inject, Target(run_dir), over)
            try:
                yield
            finally:
                over.set()
            try:
                injecting.result()
            except OSError as error:
                raise HoldfastError(f"fault injection failed: {error}; the run continued") from None

    def inject(self, target: Target) -> None:
        """Inject until no fault is left, the run is over, or `stop` is called.

        Raises:
            JobError: Another process injects faults into this run.
        """
        self._inject(target, threading.Event())

    def stop(self) -> None:
        """Inject no further fault; a signal handler may call this."""
        self.stopped = True

    def _inject(self, target: Target, over: threading.Event) -> None:
        """Inject what is due, until `over` is set."""
        with EventLog(target.run_dir / EVENTS) as log:
            if not self._await_start(target, over):
                ended = f"{self._end} before the workers trained"
                self.missed += [Missed(fault=f, reason=ended) for f in self._plan.faults]
                return
            first = target.first_step
            began = time.monotonic()
            steps = range(first, target.total_steps or first + DRAWN_STEPS)
            planned = self._plan.drawn(self._workers, steps)
            note = partial(self._note, log)
            waiting = [PendingFault(fault, note) for fault in planned]
            try:
                while waiting and self._await_next_look(target, over):
                    elapsed_s = time.monotonic() - began
                    waiting = [each for each in waiting if not each.attempt(target, elapsed_s)]
            finally:
                for pending in waiting:
                    self._give_up(pending, target)

    def _await_start(self, target: Target, over: threading.Event) -> bool:
        """Wait until workers train; returns whether they do."""
        while not (target.has_begun and (target.trains or not self._counts_steps)):
            if not self._await_next_look(target, over):
                return False
        return True

    def _await_next_look(self, target: Target, over: threading.Event) -> bool:
        """Wait a little and look at the run; returns whether faults can still be injected."""
        ended = over.wait(POLL_INTERVAL_S)
        target.look()
        return not (ended or target.over or self.stopped)

    @property
    def _end(self) -> str:
        """Event that ended the injection, so that faults were missed."""
        return "fault injection was stopped" if self.stopped else "the run ended"

    def _give_up(self, pending: PendingFault, target: Target) -> None:
        if not pending.withdraw():
            reason = pending.reason_missed(target, self._end)
            self.missed.append(Missed(fault=pending.fault, reason=reason))

    def _note(self, log: EventLog, pending: PendingFault) -> None:
        step = pending.step if self._counts_steps else None
        injected = InjectedFault(fault=pending.fault, step=step)
        self.injected.append(injected)
        log.event("fault-injected", **injected.as_dict())


AHEAD_STEPS: Final = 16
"""Steps by which a fault is requested before its own: more than pass between two looks."""

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
"""Words for what a worker did not do, so that it did not reach the failpoint."""


class PendingFault:
    """One fault, with everything specified, which waits until it can be injected.

    Signals are sent, and checkpoints corrupted, from outside the run, once so many steps are
    committed as the fault says. What only a worker can do to itself is requested before its step,
    so that it happens in that very step; but not long before, because only one request of a kind
    can be pending, and others may be due first.

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
