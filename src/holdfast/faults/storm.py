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
from pathlib import Path
from typing import Any, Final

from holdfast.faults.plan import Fault, Plan, counts_steps
from holdfast.faults.strike import Strike
from holdfast.faults.target import Target
from holdfast.job.spec import Job
from holdfast.observe.lines import EventLog

LOOK_S: Final = 0.003


@dataclass(frozen=True, slots=True, kw_only=True)
class Struck:
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


class Storm:
    """Strikes one run, once.

    Args:
        plan: What is to strike.
        job: The run's.

    Attributes:
        struck: What has struck, as it came.
        missed: What has not, once the storm is over.

    Raises:
        JobError: This job cannot be struck so.
    """

    def __init__(self, plan: Plan, job: Job) -> None:
        plan.check(job)
        self._plan, self._workers, self._counts_steps = plan, job.workers, counts_steps(job)
        self.struck: list[Struck] = []
        self.missed: list[Missed] = []

    @contextmanager
    def beside(self, run_dir: Path) -> Iterator[None]:
        """Blow beside what happens in the block: a run in `run_dir`, from its start.

        Raises:
            HoldfastError: The storm has failed, and the run has not.
        """
        over = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            blowing = pool.submit(self._blow, Target(run_dir), 0, over)
            try:
                yield
            finally:
                over.set()
            blowing.result()

    def strike(self, target: Target) -> None:
        """Blow until all has struck, or the run is over.

        Raises:
            JobError: Another storm strikes it.
        """
        self._blow(target, target.reached, threading.Event())

    def _blow(self, target: Target, first_step: int, over: threading.Event) -> None:
        """Strike whatever is due, until `over` is set at most."""
        with EventLog(target.run_dir / "events.jsonl") as log:
            if not self._await_start(target, over):
                ended = "the run ended before its workers did anything"
                self.missed += [Missed(fault=f, reason=ended) for f in self._plan.faults]
                return
            steps, began = range(first_step, target.total_steps), time.monotonic()
            waiting = [Strike(fault) for fault in self._plan.drawn(self._workers, steps)]
            try:
                while waiting and not (target.over or over.wait(LOOK_S)):
                    target.look()
                    elapsed_s = time.monotonic() - began
                    for strike in list(waiting):
                        if strike.attempt(target, elapsed_s):
                            waiting.remove(strike)
                            self._note(strike, log)
            finally:
                for strike in waiting:
                    self._give_up(strike, target, log)

    def _await_start(self, target: Target, over: threading.Event) -> bool:
        """Wait until workers train; returns whether they do."""
        while not target.over:
            if target.released and (target.total_steps > 0 or not self._counts_steps):
                return True
            if over.wait(LOOK_S):
                break
            target.look()
        return False

    def _give_up(self, strike: Strike, target: Target, log: EventLog) -> None:
        if strike.has_been_obeyed():  # at the very end
            self._note(strike, log)
        else:
            strike.call_off()
            self.missed.append(Missed(fault=strike.fault, reason=strike.reason_missed(target)))

    def _note(self, strike: Strike, log: EventLog) -> None:
        struck = Struck(fault=strike.fault, step=strike.step if self._counts_steps else None)
        self.struck.append(struck)
        log.event("fault", **struck.as_dict())
