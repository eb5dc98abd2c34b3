"""Trial: a short run of a job that measures its steps and leaves nothing behind.

It is the job itself, without checkpoints, evaluations and notifications, in a directory that is
removed.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.errors import Interrupted, JobError
from holdfast.job.train_job import TrainJob
from holdfast.record.sink import Sink
from holdfast.rundir import json_lines
from holdfast.rundir.run_directory import METRICS, RunDirectory
from holdfast.runs.controls import Controls
from holdfast.runs.hosts.placement import THIS_HOST, Placement
from holdfast.runs.run import LaunchOptions, run
from holdfast.wire.rpc import RunStateMessage

WARM_STEPS: Final = 5
"""Steps at the start of a trial that are not counted; in them, a plan is found."""
TRIAL_S: Final = 2.0
"""Time of the counted steps of a trial; there is at least one."""

TRIAL_KEYS: Final[dict[str, Any]] = {
    "on_failure": "stop",
    "notify": (),
    "checkpoint": {"every_steps": 0},
    "evaluation": {"every_epochs": 10**9},
}


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step of a trial.

    Attributes:
        samples: Number of them.
        seconds: Duration.
        workers: Measurements of each member, a list per column; see `worker.timing.breakdown`.
    """

    samples: int
    seconds: float
    workers: Mapping[str, Sequence[float]]


def timed_steps(
    job: TrainJob, options: LaunchOptions, key: str, placement: Placement = THIS_HOST
) -> list[TimedStep]:
    """The counted steps of a trial of a job, at least one.

    Args:
        job: Job to try.
        options: Options of the run itself, on a fork server that outlives the trial. They
            learn of Ctrl-C.
        key: Name of what is being measured, such as `workers=auto`.
        placement: The hosts of the run itself.

    Raises:
        Interrupted: A signal ended the trial.
        JobError: The job has too few steps to measure any.
        HoldfastError: The job fails.
    """
    trial = TrainJob.model_validate(job.model_dump() | TRIAL_KEYS)
    controls = Controls()
    timer = _Timer(controls)
    quiet = LaunchOptions(forks=options.forks, controls=controls)
    with tempfile.TemporaryDirectory(prefix="holdfast-", ignore_cleanup_errors=True) as folder:
        with RunDirectory(Path(folder) / "run", trial, resume=False) as directory:
            try:
                run(directory, quiet, [timer], placement=placement)
            except Interrupted:
                if not timer.is_over or controls.stop:
                    options.controls.interrupted = controls.interrupted
                    raise
        if controls.stop:
            options.controls.interrupted = controls.interrupted
            raise Interrupted(f"stopped before the run began: {key} was being measured")
        steps = _steps(directory.path)
    if not steps:
        raise JobError(f"{key} measures steps after the first, and there are none; give a number")
    return steps[WARM_STEPS - 1 :] or steps


def _steps(run_dir: Path) -> list[TimedStep]:
    """All steps but the first, whose time includes the start."""
    return [
        TimedStep(line["samples"], line["seconds"], line["workers"])
        for line in json_lines.read(run_dir / METRICS)
        if line.get("seconds") is not None
    ]


class _Timer(Sink):
    """Ends a trial once its counted steps have taken long enough."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls
        self._began = math.inf
        self.is_over = False

    def on_progress(self, state: RunStateMessage) -> None:
        step = max((worker.step for worker in state.progress.values()), default=0)
        if step >= WARM_STEPS:
            self._began = min(self._began, time.monotonic())
        if step > WARM_STEPS and time.monotonic() - self._began >= TRIAL_S:
            self.is_over = self._controls.abort = True


def say(key: str, text: str) -> None:
    """Tell the person at the terminal what is measured."""
    print(f"{key}: {text}", file=sys.stderr, flush=True)
