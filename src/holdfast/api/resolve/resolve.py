"""Resolve: numbers for the keys of a job that are `auto`, by measuring where that is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from holdfast.api.resolve.shards import with_best_shards
from holdfast.api.resolve.workers import divisions, fastest
from holdfast.errors import JobError
from holdfast.job.part import AUTO
from holdfast.job.train_job import TrainJob, TrainRequest
from holdfast.launch.fork_client import ForkServer
from holdfast.linux.supply import usable_cores
from holdfast.runs.hosts.placement import Placement
from holdfast.runs.run import LaunchOptions
from holdfast.runs.run_fork_server import fork_server


@contextmanager
def resolved_workers(
    request: TrainRequest, begun: TrainJob | None, options: LaunchOptions, *, queue: bool
) -> Iterator[tuple[TrainJob, LaunchOptions]]:
    """The job with numbers, and the options of its run: a fork server that measured is lent to it.

    Args:
        request: Request of the user.
        begun: The job of the run that is resumed, whose numbers are kept; None at a first start.
        options: Options with which the run is launched.
        queue: True if the run may wait for other runs of this host.

    Raises:
        JobError: The request has no valid numbers.
        Interrupted: A signal ended a trial.
        HoldfastError: The job fails.
    """
    if request.workers != AUTO or begun is not None:
        yield request.resolved(begun), options
        return
    if queue or request.resources.is_given:
        raise JobError(
            "workers=auto measures the whole host; with resources or --queue, give a number of "
            "workers"
        )
    request.check()
    jobs = divisions(request, usable_cores())
    with _lending(jobs[0], options) as lent:
        yield fastest(jobs, lent), lent


@contextmanager
def resolved_shards(
    job: TrainJob, options: LaunchOptions, placement: Placement
) -> Iterator[tuple[TrainJob, LaunchOptions]]:
    """The job with its best number of shards, and the options of its run; see above.

    Raises:
        Interrupted: A signal ended a trial.
        HoldfastError: The job fails.
    """
    if job.workers == 1:
        yield job, options
    elif job.most_hosts > 1 or placement.engine is not None:
        yield with_best_shards(job, options, placement), options
    else:
        with _lending(job, options) as lent:
            yield with_best_shards(job, lent, placement), lent


@contextmanager
def _lending(job: TrainJob, options: LaunchOptions) -> Iterator[LaunchOptions]:
    """Options with a fork server for several runs, which ends with the block unless it was lent."""
    if isinstance(options.forks, ForkServer):
        yield options
        return
    with fork_server(job, options.forks, options.code) as forks:
        yield replace(options, forks=forks)
