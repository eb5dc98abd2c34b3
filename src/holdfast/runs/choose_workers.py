"""Chooses the workers of `workers: auto`: trains a few steps with each division of the cores.

    2 cores:   1 worker of 2 threads   ─▶  905 samples/s
               2 workers of 1 thread   ─▶ 1034 samples/s   chosen
               the same with 2 shards  ─▶ 1290 samples/s   said, if the job has more

Each trial is a run of the job itself, without checkpoints, evaluations and notifications, in a
directory that is removed.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from holdfast.errors import HoldfastError, Interrupted
from holdfast.job.part import AUTO
from holdfast.job.train_job import TrainJob, TrainRequest
from holdfast.launch.fork_client import ForkServer
from holdfast.observe import lines
from holdfast.observe.run_dir import METRICS, RunDirectory
from holdfast.observe.sinks.sink import Sink
from holdfast.runs.run import LaunchOptions, run
from holdfast.runs.supervisor import Controls
from holdfast.wire.rpc import RunStateMessage

WARM_STEPS: Final = 3
"""Steps at the start of a trial that are not counted."""
TRIAL_S: Final = 2.0
"""How long the counted steps of a trial take; there is at least one."""
TIE: Final = 0.05
"""How much faster fewer workers must be: with more of them, more remain when one fails."""

COSTLY: Final = 1.1
"""How much faster fewer shards must be to be said."""

TRIAL_KEYS: Final[dict[str, Any]] = {
    "on_failure": "stop",
    "notify": (),
    "checkpoint": {"every_steps": 0},
    "evaluation": {"every_epochs": 10**9},
}


def divisions(request: TrainRequest, cores: int) -> list[TrainJob]:
    """The jobs that `workers: auto` may stand for, with fewer workers first.

    Each has a thread on every core, unless the job says how many threads a worker has.

    Args:
        request: What is asked for.
        cores: How many there are.

    Raises:
        JobError: The job allows no number of workers.
    """
    counts = [count for count in range(1, cores + 1) if cores % count == 0]
    if request.threads_per_worker != AUTO:
        counts = [max(1, cores // request.threads_per_worker)]
    shards = cores if request.shards == AUTO else request.shards
    most = min(request.batch, request.max_workers or cores, shards)
    return [
        _with_workers(request, count, cores) for count in counts if count <= max(most, counts[0])
    ]


def _with_workers(request: TrainRequest, workers: int, cores: int) -> TrainJob:
    threads = request.threads_per_worker
    threads = cores // workers if threads == AUTO else threads
    keys = {"workers": workers, "threads_per_worker": threads}
    return request.model_copy(update=keys).resolved()


def fastest(jobs: Sequence[TrainJob], forks: ForkServer) -> TrainJob:
    """The one of `jobs` with the most samples per second; what was measured is printed.

    Args:
        jobs: What to try, with fewer workers first.
        forks: Forks the workers of the trials.

    Raises:
        Interrupted: A signal ended a trial.
        HoldfastError: The job fails with the fewest workers.
    """
    if len(jobs) == 1:
        _say(f"{_words(jobs[0])}: the only way to use the cores for this job")
        return jobs[0]
    _say(f"measuring {', '.join(map(_words, jobs))}")
    rates: dict[int, float] = {}
    for place, job in enumerate(jobs):
        try:
            rates[place] = _samples_per_s(job, forks)
        except Interrupted:
            raise
        except HoldfastError as error:  # more workers need more memory, for one
            if not rates:
                raise
            _say(f"{_words(job)} failed: {error}")
    chosen = max(place for place, rate in rates.items() if rate >= (1 - TIE) * max(rates.values()))
    measured = ", ".join(f"{rate:,.0f} with {_words(jobs[place])}" for place, rate in rates.items())
    _say(f"{_words(jobs[chosen])}; samples/s: {measured}")
    _compare_shards(jobs[chosen], rates[chosen], forks)
    return jobs[chosen]


def _compare_shards(job: TrainJob, rate: float, forks: ForkServer) -> None:
    """Say what more shards than workers cost, if that is much; they are kept."""
    if job.merges_shards or job.shards <= job.workers:
        return
    keys = {"shards": job.workers, "max_workers": None, "shards_per_worker": None}
    try:
        fewer = _samples_per_s(job.model_copy(update=keys), forks)
    except Interrupted:
        raise
    except HoldfastError:  # larger shards need more memory, for one
        return
    if fewer > COSTLY * rate:
        _say(
            f"shards={job.shards} costs time: shards={job.workers} reaches {fewer:,.0f} samples/s, "
            f"{fewer / rate - 1:.0%} more, with other weights"
        )


class _Timer(Sink):
    """Ends a trial once its counted steps have taken long enough."""

    def __init__(self, controls: Controls) -> None:
        self._controls, self._began, self.is_over = controls, math.inf, False

    def on_progress(self, state: RunStateMessage) -> None:
        step = max((worker.step for worker in state.progress.values()), default=0)
        if step >= WARM_STEPS:
            self._began = min(self._began, time.monotonic())
        if step > WARM_STEPS and time.monotonic() - self._began >= TRIAL_S:
            self.is_over = self._controls.abort = True


def _samples_per_s(job: TrainJob, forks: ForkServer) -> float:
    trial = TrainJob.model_validate(job.model_dump() | TRIAL_KEYS)
    controls = Controls()
    timer = _Timer(controls)
    with tempfile.TemporaryDirectory(prefix="holdfast-", ignore_cleanup_errors=True) as folder:
        with RunDirectory(Path(folder) / "run", trial, resume=False) as directory:
            try:
                run(directory, LaunchOptions(forks=forks, controls=controls), [timer])
            except Interrupted:
                if not timer.is_over or controls.stop:
                    raise
        if controls.stop:
            raise Interrupted("stopped before the run began: workers=auto was being measured")
        steps = [line for line in lines.read(directory.path / METRICS) if "loss" in line]
    counted = steps[WARM_STEPS:] or steps
    samples, seconds = (sum(line[key] for line in counted) for key in ("samples", "seconds"))
    return float(samples / seconds)


def _words(job: TrainJob) -> str:
    workers, threads = job.workers, job.threads_per_worker
    return (
        f"{workers} worker{'s' if workers > 1 else ''} of {threads} "
        f"thread{'s' if threads > 1 else ''}"
    )


def _say(text: str) -> None:
    print(f"workers=auto: {text}", file=sys.stderr, flush=True)
