"""Script steps: the steps of a script, as it reports them, or else as its optimizer makes them.

    holdfast.report ──┐                ┌─▶ status of this worker ─▶ top, Prometheus
                      ├─▶ ScriptSteps ─┤
    optimizer.step ───┘                └─▶ metrics.jsonl, by rank 0 ─▶ the record, trackers

A line waits for the next step while a GPU computes its loss, and where an optimizer has made the
step: the script may still report it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import nan
from pathlib import Path
from typing import Any, Final
from weakref import ref

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from holdfast.arena.memory import Arena, Phase, Word
from holdfast.arena.worker_status import WorkerStatus
from holdfast.rundir import json_lines
from holdfast.rundir.run_directory import METRICS, RECOMPUTED
from holdfast.worker.script import report
from holdfast.worker.step.finite_check import begin_readback

PHASES: Final = (Phase.FORWARD, Phase.REDUCE)
"""The phases of a script: its own code, and collectives."""
COUNTED: Final = "counted"
"""The key of a line whose step was counted, not reported."""


class ScriptSteps:
    """The steps of one worker's script since it was started.

    Args:
        arena: Memory in which the workers of this host show their newest steps, and what they
            spend their time on.
        rank: The worker.
        local: All workers of this host.
        run_dir: The run's directory.
    """

    def __init__(self, arena: Arena, rank: int, local: Sequence[int], run_dir: Path) -> None:
        self._status = WorkerStatus(arena, rank)
        self._workers = [WorkerStatus(arena, each) for each in local]
        self._spent = self._spent_so_far()
        self._path = run_dir / METRICS
        self._pid = os.getpid()
        self._lines: json_lines.JsonLines | None = None
        self._waiting: tuple[int, Callable[[], list[float]], dict[str, object]] | None = None
        self._optimizer: ref[Optimizer] | None = None
        self._is_reported = False
        self._step = 0
        self._stepped_at: float | None = None

    def begin(self) -> None:
        """Take what this process reports from now on. On rank 0, count the steps of its first
        optimizer, too, unless the script has reported some before it was restarted.
        """
        report.receiver = self
        # A script that has reported steps does so again: counted ones would come twice.
        steps = [line for line in json_lines.last(self._path) if isinstance(line.get("step"), int)]
        if self._status.rank == 0 and all(COUNTED in line for line in steps):
            self._step = max([self._status[Word.COMMITTED], *(line["step"] for line in steps)])
            register_optimizer_step_post_hook(self._count)
        self._status[Word.COMMITTED] = self._step
        self._status[Word.SAMPLES] = 0

    def report(self, step: int, loss: float | Tensor | None, samples: int) -> None:
        """Take a report; see `holdfast.report`."""
        if os.getpid() != self._pid:  # the script has forked this process
            return
        if not self._is_reported:
            self._is_reported = True
            self._waiting = None
            self._stepped_at = None
            if self._step:  # all were counted
                self._forget_after(0)
        self._status[Word.SAMPLES] += samples
        self._take(step, _read_later(loss), samples=samples)
        if not isinstance(loss, Tensor) or loss.device.type == "cpu":
            self.settle()
        self._status[Word.COMMITTED] = step

    def settle(self) -> None:
        """Write the line that waits."""
        if self._waiting is not None:
            step, loss, more = self._waiting
            self._waiting = None
            [self._status.loss] = loss()
            if self._lines is not None:
                self._lines.write(step=step, loss=json_lines.number(self._status.loss), **more)

    def _count(self, optimizer: Optimizer, *_: Any) -> None:
        """Count a step of the script's first optimizer."""
        if torch.compiler.is_compiling() or self._is_reported or os.getpid() != self._pid:
            return
        # A script may have several; the first one that steps counts, as long as it exists.
        if self._optimizer is None or self._optimizer() is None:
            self._optimizer = ref(optimizer)
        if optimizer is self._optimizer():
            self._take(self._step + 1, _read_later(None), samples=0, **{COUNTED: True})
            self._status[Word.COMMITTED] = self._step

    def _take(self, step: int, loss: Callable[[], list[float]], **known: object) -> None:
        """Note a step, whose loss is read when its line is written."""
        self.settle()
        if self._lines is None or step <= self._step:
            self._forget_after(max(0, step - 1), self._path.with_name(RECOMPUTED))
        now = time.monotonic()
        seconds = None if self._stepped_at is None else round(now - self._stepped_at, 6)
        workers = self._since_last()
        times = {"seconds": seconds, "workers": {} if seconds is None else workers}
        now_s = round(time.time(), 6)
        self._step = step
        self._stepped_at = now
        self._waiting = (step, loss, {**known, **times, "time_unix_s": now_s}) if step else None

    def _since_last(self) -> dict[str, Sequence[float]]:
        """The times of the workers of this host since the last call, as in `breakdown`."""
        before = self._spent
        self._spent = self._spent_so_far()
        spent = {
            phase.name.lower(): [
                round(max(0, now - then) / 1e9, 6)
                for now, then in zip(self._spent[phase], before[phase], strict=True)
            ]
            for phase in PHASES
        }
        ranks = [each.rank for each in self._workers]
        return {"rank": ranks, "shards": [1] * len(ranks), **spent}

    def _spent_so_far(self) -> dict[Phase, list[int]]:
        """The time of each worker of this host in each phase of a script, nanoseconds."""
        now = time.monotonic_ns()
        spent = {
            phase: [each[Word.PHASE_TIMES + phase] for each in self._workers] for phase in PHASES
        }
        for place, each in enumerate(self._workers):
            if (phase := Phase(each[Word.PHASE])) in PHASES:
                spent[phase][place] += now - each[Word.PHASE_SINCE]
        return spent

    def _forget_after(self, step: int, removed: Path | None = None) -> None:
        """Begin to write after `step` steps: of those that come again, the last ones count, and
        those before are appended to `removed`.
        """
        if self._status.rank == 0:
            with suppress(OSError):  # no run ends because of a log
                json_lines.forget_after(self._path, step, removed=removed)
                self._lines = self._lines or json_lines.JsonLines(self._path)


def _read_later(loss: float | Tensor | None) -> Callable[[], list[float]]:
    """Gives a loss when it is called, so that the script need not wait for the GPU that has it."""
    if isinstance(loss, Tensor):
        return begin_readback(loss.detach().reshape(1).double())
    return lambda: [nan if loss is None else float(loss)]
