"""Taken-over runs: a run of another host, once this one has its coordinator: shown and kept here.

Trackers, notifications and backups belong to the command that has started the run, and end with it.
"""

from __future__ import annotations

import time
from typing import Any

from holdfast.api.result import RunResult
from holdfast.api.script import script_result
from holdfast.api.train import train_result
from holdfast.job.train_job import TrainJob
from holdfast.record.sink import Ending, Sink
from holdfast.rundir.run_directory import RunPaths
from holdfast.runs.hosts.endpoint import rejoin_hint
from holdfast.sinks.run_files import RunFiles
from holdfast.sinks.tee import Tee
from holdfast.sinks.terminal import Terminal


class TakenOver:
    """The watcher of such a run; see `succession.Attendant`.

    Args:
        directory: The run's directory on this host.

    Attributes:
        sinks: Receivers of its progress.
    """

    def __init__(self, directory: RunPaths) -> None:
        self._directory = directory
        self._began_at = time.monotonic()
        path = directory.path
        terminal = Terminal(
            Tee(directory.logs, ()),
            directory.logs,
            hint=rejoin_hint(path),
            tokens_per_sample=directory.job.tokens_per_sample,
        )
        self.sinks: tuple[Sink, ...] = (terminal, RunFiles(path))

    def conclude(self, summary: dict[str, Any] | None, error: str) -> None:
        """Implements `succession.Attendant`."""
        ending = Ending(status="failed", error=error)
        if summary is not None:
            result = self._result(summary)
            ending = Ending(status=result.status, result=result.as_dict())
        for sink in self.sinks:
            sink.close(ending)

    def _result(self, summary: dict[str, Any]) -> RunResult:
        job = self._directory.job
        path = self._directory.path
        if isinstance(job, TrainJob):
            return train_result(job, path, summary)
        return script_result(job.workers, path, summary, self._began_at)
