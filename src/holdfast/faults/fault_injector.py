"""FaultInjector: injects the faults of a plan into one run, and reports which it missed.

It looks at the run every few milliseconds. A fault that is due waits until it can be injected, such
as for the replacement of a failed worker. It is missed if the run ends first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from holdfast.errors import HoldfastError
from holdfast.faults.pending_fault import PendingFault
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
