"""Runs: train a workload under one system, and measure window after window.

holdfast needs a run for each period, which is a key of its job. A peer's processes measure all
periods, which favors the peers: what varies from process to process is in each of their ratios.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.checkpoint.exports.weights import read_checkpoint
from holdfast.checkpoint.find import find_checkpoint
from holdfast.launch.fork_client import ForkServer
from holdfast.launch.spawn import worker_environment
from holdfast.runs.run import LaunchOptions
from holdfast_bench.checkpoint.disk import sync_file_system
from holdfast_bench.checkpoint.systems import OURS
from holdfast_bench.checkpoint.window import NEVER, Save, SaveSchedule, Window
from holdfast_bench.launch import PeerLaunch, ranks
from holdfast_bench.trial import RunRecords, train
from holdfast_bench.workloads import job_keys

TIMEOUT_S: Final = 600.0
"""How long the processes of a peer may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRunner:
    """Runs one workload with a number of workers.

    Attributes:
        workload: Its name.
        workers: How many.
        folder: On the disk that is measured.
        forks: For the workers of holdfast.
    """

    workload: str
    workers: int
    folder: Path
    forks: ForkServer

    def windows(self, system: str, schedules: Sequence[SaveSchedule]) -> list[Window]:
        """Measure one window after the other.

        Raises:
            HoldfastError: The system failed.
        """
        if system in OURS:
            return [self._ours(OURS[system], schedule) for schedule in schedules]
        return self._of_peer(system, schedules)

    def rows_of(self, saving: Mapping[str, object], schedule: SaveSchedule) -> list[dict[str, Any]]:
        """The steps that a run of holdfast has recorded.

        Args:
            saving: The job's keys below `checkpoint`.
            schedule: Says how long it runs.

        Raises:
            HoldfastError: It failed.
        """
        with self._run(saving, schedule) as records:
            return records.steps()

    def _ours(self, busy: str, schedule: SaveSchedule) -> Window:
        with self._run({"every_steps": schedule.every, "busy": busy}, schedule) as records:
            return _window_of(records, schedule)

    @contextmanager
    def _run(self, saving: Mapping[str, object], schedule: SaveSchedule) -> Iterator[RunRecords]:
        """The records of one run of holdfast, whose last checkpoint can be read."""
        keys = {**job_keys(self.workload, self.workers, schedule.last), "checkpoint": dict(saving)}
        sync_file_system(self.folder)
        with train(keys, LaunchOptions(forks=self.forks), self.folder) as records:
            read_checkpoint(find_checkpoint(records.run_dir))
            yield records

    def _of_peer(self, system: str, schedules: Sequence[SaveSchedule]) -> list[Window]:
        """One launch of a peer's processes."""
        with tempfile.TemporaryDirectory(dir=self.folder, ignore_cleanup_errors=True) as folder:
            result = Path(folder) / "windows.json"
            commands = ranks(
                "holdfast_bench.checkpoint.peer_loop",
                self.workers,
                worker_environment(),
                workload=self.workload,
                system=system,
                result=result,
                every=json.dumps([schedule.every for schedule in schedules]),
                steps=schedules[0].least_steps,
            )
            with PeerLaunch(commands, Path(folder)) as launch:
                launch.join(TIMEOUT_S)
            windows: list[dict[str, Any]] = json.loads(result.read_bytes())
        return [
            Window(
                schedule=SaveSchedule(**window.pop("schedule")),
                saves=tuple(Save(**save) for save in window.pop("saves")),
                **window,
            )
            for window in windows
        ]


def _window_of(records: RunRecords, schedule: SaveSchedule) -> Window:
    """The window of a run of holdfast."""
    steps = {line["step"]: line for line in records.steps()}
    saves = tuple(
        Save(
            step=event["step"],
            taken_unix_s=steps[event["step"]]["time_unix_s"],
            finished_unix_s=event["time_unix_s"],
            stall_s=_stall_s(steps.get(event["step"] + 1)),
        )
        for event in records.events("checkpoint-committed")
        if event["step"] < schedule.last or schedule.saves_after(schedule.last)
    )
    return Window(
        schedule=schedule,
        began_unix_s=steps[schedule.first]["time_unix_s"],
        ended_unix_s=steps[schedule.last]["time_unix_s"],
        saves=saves if schedule.every != NEVER else (),
    )


def _stall_s(next_step: dict[str, Any] | None) -> float | None:
    """Seconds that a checkpoint has held up a worker; the step after it counts them."""
    return None if next_step is None else next_step["phases"].get("checkpoint", 0.0)
