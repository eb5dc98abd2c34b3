"""Metrics: the file of a run's metrics, which the first member of each generation continues."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.observe import lines
from holdfast.observe.run_dir import METRICS
from holdfast.worker.progress import Progress
from holdfast.worker.tally import together


class Metrics:
    """One worker's metrics; only the first member writes them.

    Args:
        run_dir: The directory of the run.
    """

    def __init__(self, run_dir: str) -> None:
        self.run_dir = Path(run_dir)
        self._path = self.run_dir / METRICS
        self._lines: lines.JsonLines | None = None
        self._evaluated_step = -1
        self._samples, self._seconds = 0, 0.0
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
            newest = lines.forget_after(self._path, progress.step)
            self._lines = lines.JsonLines(self._path)
            noted = [entry for entry in newest if entry["step"] == progress.step]
            if progress.record and not any("loss" in entry for entry in noted):
                self._lines.write(**progress.record)
            if any("evaluation" in entry for entry in noted):
                self._evaluated_step = progress.step
            elif progress.followup.calls and not progress.followup.pending:  # its writer was lost
                results = progress.evaluations.results[: progress.followup.calls]
                self.evaluation(progress.step, together(results))

    def step(self, record: Mapping[str, Any], phases: Mapping[str, float]) -> None:
        """Write a committed step, and the seconds that this worker spent in each phase of it."""
        now = time.monotonic()
        seconds = None if self._last_step_at is None else now - self._last_step_at
        if seconds is not None:
            self._samples += record["samples"]
            self._seconds += seconds
        self._last_step_at = now
        if self._lines is not None:
            now_s = round(time.time(), 6)
            self._lines.write(**record, seconds=seconds, phases=phases, time_unix_s=now_s)

    def evaluation(self, step: int, results: Mapping[str, Any]) -> None:
        """Write the results of an evaluation after `step` steps, once."""
        if self._lines is not None and self._evaluated_step != step:
            self._evaluated_step = step
            self._lines.write(step=step, evaluation=lines.finite(results))

    def throughput(self) -> dict[str, float | None]:
        """Samples per second since the first step, checkpoints and evaluations included."""
        rate = round(self._samples / self._seconds, 1) if self._samples else None
        return {"samples_per_s": rate}
