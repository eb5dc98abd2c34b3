"""Metrics: the file of a run's metrics, which the first member of each host continues.

So every host has all metrics, except for the steps that it missed while none of its workers was a
member. The newest of these come with the state of another worker.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from holdfast.rundir import json_lines
from holdfast.rundir.run_directory import METRICS, RECOMPUTED
from holdfast.worker.metric_states import together
from holdfast.worker.progress import Progress

MAX_RECENT: Final = 100
"""Newest steps that a host gets which has missed them, at most."""
MAX_RECENT_BYTES: Final = 128 << 10
"""Most bytes of them as JSON."""


class Metrics:
    """One worker's metrics; only the first member of a host writes them.

    Args:
        run_dir: The directory of the run.

    Attributes:
        recent: Lines of the newest steps that this worker knows, oldest first.
    """

    def __init__(self, run_dir: str) -> None:
        self.run_dir = Path(run_dir)
        self.recent: deque[Mapping[str, Any]] = deque(maxlen=MAX_RECENT)
        self._path = self.run_dir / METRICS
        self._lines: json_lines.JsonLines | None = None
        self._received: dict[str, dict[str, float]] = {}  # when state came, until it is written
        self._evaluated_step = -1
        self._samples = 0
        self._seconds = 0.0
        self._last_step_at: float | None = None

    def set_writing(self, progress: Progress, *, writes: bool) -> None:
        """Begin or stop to write. A worker that begins continues after the steps of `progress`,
        where another one may have stopped.
        """
        if not writes:
            if self._lines is not None:
                self._lines.close()
            self._lines = None
        elif self._lines is None:
            # Lines of steps that will be computed again move to a file of their own; the writer
            # before may have been ahead.
            removed = self.run_dir / RECOMPUTED
            newest = json_lines.forget_after(self._path, progress.step, removed=removed)
            self._lines = json_lines.JsonLines(self._path)
            noted = [entry for entry in newest if entry["step"] == progress.step]
            last = newest[-1]["step"] if newest else 0
            known = last if any("loss" in entry for entry in newest) else last - 1
            # Steps that no worker of this host has written, as far as they are known.
            missed = {each["step"]: each for each in (*self.recent, progress.record) if each}
            for step, record in sorted(missed.items()):
                if known < step <= progress.step:
                    self._lines.write(**record)
            if any("evaluation" in entry for entry in noted):
                self._evaluated_step = progress.step
            elif progress.followup.calls and not progress.followup.pending:  # its writer was lost
                results = progress.evaluations.results[: progress.followup.calls]
                self.evaluation(progress.step, together(results))

    def for_others(self) -> list[Mapping[str, Any]]:
        """The newest of `recent`, for a worker of another host: at most `MAX_RECENT_BYTES`."""
        sizes = accumulate(len(json.dumps(each)) for each in reversed(self.recent))
        count = sum(size <= MAX_RECENT_BYTES for size in sizes)
        return list(self.recent)[len(self.recent) - count :]

    def note_transfer(self, size_bytes: int) -> None:
        """Note that joining workers have the state now, `size_bytes` each; the line of the next
        step says so.
        """
        self._received["transferred"] = {
            "time_unix_s": round(time.time(), 6),
            "size_bytes": size_bytes,
        }

    def note_load(self) -> None:
        """Note that all members have loaded a checkpoint now; the line of the next step says so."""
        self._received["loaded"] = {"time_unix_s": round(time.time(), 6)}

    def step(
        self,
        record: Mapping[str, Any],
        phases: Mapping[str, float],
        workers: Callable[[], Mapping[str, Sequence[float]]],
    ) -> None:
        """Write a committed step.

        Args:
            record: Line of the step.
            phases: The seconds that this worker spent in each phase of it.
            workers: Gives what each member has measured; see `breakdown`.
        """
        self.recent.append(record)
        now = time.monotonic()
        seconds = None if self._last_step_at is None else now - self._last_step_at
        if seconds is not None:
            self._samples += record["samples"]
            self._seconds += seconds
        self._last_step_at = now
        if self._lines is not None:
            now_s = round(time.time(), 6)
            times = {"seconds": seconds, "phases": phases, "workers": workers()}
            self._lines.write(**record, **times, time_unix_s=now_s, **self._received)
        self._received = {}

    def evaluation(self, step: int, results: Mapping[str, Any]) -> None:
        """Write the results of an evaluation after `step` steps, once."""
        if self._lines is not None and self._evaluated_step != step:
            self._evaluated_step = step
            self._lines.write(step=step, evaluation=json_lines.finite(results))

    def throughput(self) -> dict[str, float | None]:
        """Samples per second since the first step, checkpoints and evaluations included."""
        rate = round(self._samples / self._seconds, 1) if self._samples else None
        return {"samples_per_s": rate}
