"""Storm: strikes a run by a plan, and tells what has struck and what has missed.

It looks at the run every few milliseconds. A fault that cannot strike when its time has come, for
nobody is there whom it would befall, waits until it can, and has missed if the run ends before.
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
from holdfast.observe.lines import EventLog
from holdfast.observe.run_dir import EVENTS

POLL_INTERVAL_S: Final = 0.003


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedFault:
    """A fault that has happened.

    Attributes:
        fault: It, with all that was drawn.
        step: How many steps were committed then; None where the run counts none.
    """

    fault: Fault
    step: int | None

    def as_dict(self) -> dict[str, Any]:
        """As plain data; `step` is that at which it struck."""
        step = {} if self.step is None else {"step": self.step}
        return self.fault.model_dump(exclude_none=True) | step


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """A fault that has not happened, and why."""

    fault: Fault
    reason: str

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        return self.fault.model_dump(exclude_none=True) | {"reason": self.reason}


class FaultInjector:
    """Strikes one run, once.

    Args:
        plan: What is to strike.
        job: The run's.

    Attributes:
        struck: What has struck, as it came.
        missed: What has not, once the storm is over.
        stopped: Whether it was, by `stop`.

    Raises:
        JobError: This job cannot be struck so.
    """

    def __init__(self, plan: FaultPlan, job: Job) -> None:
        plan.check(job)
        self._plan, self._workers, self._counts_steps = plan, job.workers, job.records_progress
        self.injected: list[InjectedFault] = []
        self.missed: list[Missed] = []
        self.stopped = False

    @contextmanager
    def running(self, run_dir: Path) -> Iterator[None]:
        """Blow beside what happens in the block: a run in `run_dir`, from its start.

        Raises:
            HoldfastError: The storm has failed, and the run has not.
        """
        over = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            blowing = pool.submit(self._inject, Target(run_dir), over)
            try:
                yield
            finally:
                over.set()
            try:
                blowing.result()
            except OSError as error:
                raise HoldfastError(f"the storm has ended: {error}; the run went on") from None

    def strike(self, target: Target) -> None:
        """Blow until all has struck, or the run is over, or `stop` is called.

        Raises:
            JobError: Another storm strikes it.
        """
        self._inject(target, threading.Event())

    def stop(self) -> None:
        """Strike no more from the next look on; a handler of signals may call this."""
        self.stopped = True

    def _inject(self, target: Target, over: threading.Event) -> None:
        """Strike whatever is due, until `over` is set at most."""
        with EventLog(target.run_dir / EVENTS) as log:
            if not self._await_start(target, over):
                ended = f"{self._end} before the workers did anything"
                self.missed += [Missed(fault=f, reason=ended) for f in self._plan.faults]
                return
            steps, began = range(target.first_step, target.total_steps), time.monotonic()
            planned, note = self._plan.drawn(self._workers, steps), partial(self._note, log)
            waiting = [PendingFault(fault, note) for fault in planned]
            try:
                while waiting and self._goes_on(target, over):
                    elapsed_s = time.monotonic() - began
                    for strike in list(waiting):
                        if strike.attempt(target, elapsed_s):
                            waiting.remove(strike)
            finally:
                for strike in waiting:
                    self._give_up(strike, target)

    def _await_start(self, target: Target, over: threading.Event) -> bool:
        """Wait until workers train; returns whether they do."""
        while not (target.released and (target.total_steps > 0 or not self._counts_steps)):
            if not self._goes_on(target, over):
                return False
        return True

    def _goes_on(self, target: Target, over: threading.Event) -> bool:
        """Look at the run, a little after the last time; returns whether it can still be struck."""
        ended = over.wait(POLL_INTERVAL_S)
        target.look()
        return not (ended or target.over or self.stopped)

    @property
    def _end(self) -> str:
        """What has ended, so that faults have missed."""
        return "the storm was stopped" if self.stopped else "the run ended"

    def _give_up(self, strike: PendingFault, target: Target) -> None:
        if not strike.call_off():
            reason = strike.reason_missed(target, self._end)
            self.missed.append(Missed(fault=strike.fault, reason=reason))

    def _note(self, log: EventLog, strike: PendingFault) -> None:
        struck = InjectedFault(fault=strike.fault, step=strike.step if self._counts_steps else None)
        self.injected.append(struck)
        log.event("fault-injected", **struck.as_dict())
