"""Chooses the workers of `workers: auto`: trains a few steps with each division of the cores.

2 cores:   1 worker of 2 threads   ─▶  905 samples/s
           2 workers of 1 thread   ─▶ 1034 samples/s   chosen
           the same with 2 shards  ─▶ 1290 samples/s   said, if the job has more
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.api.resolve.trials import say, timed_steps
from holdfast.errors import HoldfastError, Interrupted
from holdfast.job.part import AUTO
from holdfast.job.train_job import TrainJob, TrainRequest
from holdfast.runs.run import LaunchOptions

KEY: Final = "workers=auto"
TIE: Final = 0.05
"""Least gain of fewer workers: with more of them, more remain when one fails."""

COSTLY: Final = 1.1
"""Least gain of fewer shards that is said."""


def divisions(request: TrainRequest, cores: int) -> list[TrainJob]:
    """The jobs that `workers: auto` may stand for, with fewer workers first.

    Each has a thread on every core, unless the job says how many threads a worker has.

    Args:
        request: Request of the user.
        cores: Number of them.

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


def fastest(jobs: Sequence[TrainJob], options: LaunchOptions) -> TrainJob:
    """The one of `jobs` with the most samples per second; what was measured is printed.

    Args:
        jobs: Jobs to try, with fewer workers first.
        options: See `timed_steps`.

    Raises:
        Interrupted: A signal ended a trial.
        HoldfastError: The job fails with the fewest workers.
    """
    if len(jobs) == 1:
        say(KEY, f"{_words(jobs[0])}: the only way to use the cores for this job")
        return jobs[0]
    say(KEY, f"measuring {', '.join(map(_words, jobs))}")
    rates: dict[int, float] = {}
    for place, job in enumerate(jobs):
        try:
            rates[place] = _samples_per_s(job, options)
        except Interrupted:
            raise
        except HoldfastError as error:  # more workers need more memory, for one
            if not rates:
                raise
            say(KEY, f"{_words(job)} failed: {error}")
    chosen = max(place for place, rate in rates.items() if rate >= (1 - TIE) * max(rates.values()))
    measured = ", ".join(f"{rate:,.0f} with {_words(jobs[place])}" for place, rate in rates.items())
    say(KEY, f"{_words(jobs[chosen])}; samples/s: {measured}")
    _compare_shards(jobs[chosen], rates[chosen], options)
    return jobs[chosen]


def _compare_shards(job: TrainJob, rate: float, options: LaunchOptions) -> None:
    """Say what more shards than workers cost, if that is much; they are kept. Without them, a
    balance other than even has nothing to divide, so they are not weighed there.
    """
    if job.merges_shards or job.balance != "even" or job.shards <= job.workers:
        return
    keys = {"shards": job.workers, "max_workers": None, "shards_per_worker": None}
    try:
        fewer = _samples_per_s(job.model_copy(update=keys), options)
    except Interrupted:
        raise
    except HoldfastError:  # larger shards need more memory, for one
        return
    if fewer > COSTLY * rate:
        say(
            KEY,
            f"shards={job.shards} costs time: shards={job.workers} reaches {fewer:,.0f} samples/s, "
            f"{fewer / rate - 1:.0%} more, with other weights",
        )


def _samples_per_s(job: TrainJob, options: LaunchOptions) -> float:
    steps = timed_steps(job, options, KEY)
    return sum(step.samples for step in steps) / sum(step.seconds for step in steps)


def _words(job: TrainJob) -> str:
    workers = job.workers
    threads = job.threads_per_worker
    return (
        f"{workers} worker{'s' if workers > 1 else ''} of {threads} "
        f"thread{'s' if threads > 1 else ''}"
    )
