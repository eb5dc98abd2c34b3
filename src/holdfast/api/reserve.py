"""Reserving: the hosts on which a run's workers run, before it begins.

an engine's hosts   are reserved, and given back after the run
this host           is claimed: with resources or --queue all that the run needs must be free, else
                    the run is refused, or waits; otherwise the claim only lets other runs know
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.errors import EngineError, Interrupted, JobError
from holdfast.job.part import AUTO
from holdfast.job.script_job import ScriptJob
from holdfast.job.spec import Job
from holdfast.job.train_job import TrainRequest
from holdfast.record import registry
from holdfast.runs.controls import Controls, stopped_by_signals
from holdfast.runs.hosts.endpoint import Endpoint, address_towards, free_port
from holdfast.runs.hosts.host_claims import LOOK_S, WaitForResources, claimed_shares
from holdfast.runs.hosts.placement import Placement

if TYPE_CHECKING:
    from holdfast.clusters.engines.engine import ResourceRequest

ASK_S: Final = 3.0
"""Interval at which an engine is asked again while a run waits for it."""
TICK_S: Final = 0.1


@contextmanager
def reserved(
    job: Job,
    run_dir: Path,
    placement: Placement,
    controls: Controls,
    *,
    on: str = "",
    address: str = "",
    queue: bool = False,
) -> Iterator[Placement]:
    """The placement of a run, with the hosts that it has until the block ends.

    Args:
        job: The job.
        run_dir: The run's directory.
        placement: Its hosts, as far as the caller has chosen them.
        controls: End a wait.
        on: Name of the engine; see `open_engine`. Empty: the hosts of `placement`.
        address: See `engine_hosts`.
        queue: True if the run waits until what it needs is free.

    Raises:
        JobError: There is no such engine, or the hosts never have what the run needs.
        EngineError: Too little is free now, or the engine cannot be used.
        Interrupted: A signal ended the wait.
    """
    if on:
        wait = _waiting(run_dir, job.name, on, ASK_S, controls) if queue else None
        with engine_hosts(job, on, address, wait) as there:
            yield replace(placement, engine=there.engine, endpoint=there.endpoint)
    elif placement.engine is None and placement.has_own_host:
        wait = _waiting(run_dir, job.name, "local", LOOK_S, controls) if queue else None
        is_exclusive = queue or job.resources.is_given
        with claimed_shares(job, run_dir.name, wait, is_exclusive=is_exclusive) as shares:
            yield replace(placement, shares=shares)
    else:
        yield placement  # each agent claims what it uses on its own host


@contextmanager
def engine_hosts(
    job: TrainRequest | ScriptJob, on: str, address: str = "", wait: WaitForResources | None = None
) -> Iterator[Placement]:
    """The hosts that an engine reserves for a job; they are given back when the block ends.

    Args:
        job: The job.
        on: Name of the engine; see `open_engine`.
        address: Address of this host for the agents; by default that of the route to the cluster.
        wait: Waits until what the job needs is free; None: it is refused instead.

    Raises:
        JobError: There is no such engine, or it cannot run the job.
        EngineError: The engine cannot be used, or too little is free and the run does not wait.
        Interrupted: A signal ended the wait.
    """
    from holdfast.clusters.engines.open_engine import open_engine

    ask = ask_of(job)
    with closing(open_engine(on)) as engine:
        lacking = engine.reserve(ask)
        if lacking and wait is None:
            raise EngineError(
                f"{engine.name} lacks what the run needs: {lacking}; wait for it by --queue "
                "(queue=True in Python), or ask for less by hosts, workers or resources"
            )
        if lacking and wait is not None:
            wait(partial(engine.reserve, ask), lacking)
        endpoint = Endpoint(address=address or _address(engine.peer), port=free_port())
        yield Placement(engine=engine, endpoint=endpoint)


def count_hosts(on: str) -> int:
    """Number of hosts of an engine; see `open_engine`.

    Raises:
        JobError: There is no such engine.
        EngineError: It cannot be used.
    """
    from holdfast.clusters.engines.open_engine import open_engine

    with closing(open_engine(on)) as engine:
        return engine.num_hosts


def ask_of(job: TrainRequest | ScriptJob) -> ResourceRequest:
    """Request of a job to an engine.

    Raises:
        JobError: It leaves its number of workers to a measurement of this host.
    """
    if job.workers == AUTO:
        raise JobError("workers=auto measures this host; with --on, give a number of workers")
    from holdfast.clusters.engines.engine import ResourceRequest

    threads = 1 if job.threads_per_worker == AUTO else job.threads_per_worker
    resources = job.resources.model_copy(update={"cpus": max(job.resources.cpus, threads)})
    workers = job.workers_per_host
    return ResourceRequest(agents=job.hosts, workers=workers, resources=resources)


def _address(peer: str) -> str:
    try:
        return address_towards(peer)
    except OSError as error:
        raise JobError(
            f"the address of this host towards {peer or 'others'} is not known: {error}; give it "
            "by --address"
        ) from None


def _waiting(
    run_dir: Path, job: str, engine: str, every_s: float, controls: Controls
) -> WaitForResources:
    """A wait during which the run is listed as one that waits to begin."""

    def wait(attempt: Callable[[], str], lacking: str) -> str:
        with registry.waiting(run_dir, job, engine), stopped_by_signals(controls, "the wait"):
            return _until_free(attempt, lacking, every_s, controls)

    return wait


def _until_free(
    attempt: Callable[[], str], lacking: str, every_s: float, controls: Controls
) -> str:
    """Repeat an attempt until it lacks nothing; print what it lacks when that changes."""
    printed = ""
    while lacking:
        if lacking != printed:
            print(f"holdfast: waiting for {lacking}", file=sys.stderr, flush=True)
            printed = lacking
        ends_at = time.monotonic() + every_s
        while time.monotonic() < ends_at:
            if controls.stop:
                raise Interrupted("stopped while the run waited: nothing of it had begun")
            time.sleep(TICK_S)
        lacking = attempt()
    return lacking
