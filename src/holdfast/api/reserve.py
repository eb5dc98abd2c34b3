"""Placing: reserves the hosts of a run with an engine, and says where its agents join."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from holdfast.clusters.engines.engine import Ask
from holdfast.clusters.engines.open_engine import open_engine
from holdfast.errors import EngineError, JobError
from holdfast.job.part import AUTO
from holdfast.job.script_job import ScriptJob
from holdfast.job.train_job import TrainRequest
from holdfast.record import registry
from holdfast.runs.hosts.endpoint import Endpoint, address_towards, free_port
from holdfast.runs.hosts.waiting import wait_until_free
from holdfast.runs.run import LaunchOptions

ASK_S: Final = 3.0
"""How often an engine is asked again while a run waits for it."""


@contextmanager
def placed(
    job: TrainRequest | ScriptJob,
    options: LaunchOptions,
    on: str,
    address: str = "",
    run_dir: str | Path | None = None,
) -> Iterator[LaunchOptions]:
    """The options of a run on the hosts that an engine has reserved; they are given back after it.

    Args:
        job: The job.
        options: Those of the same run on this host.
        on: Names the engine; see `open_engine`. Empty: this host.
        address: Of this host, for the agents; by default that of the route to the cluster.
        run_dir: The run's directory, if it has been named.

    Raises:
        JobError: There is no such engine, or it cannot run the job.
        EngineError: The engine cannot be used, or too little is free and the run does not wait.
        Interrupted: A signal has ended the wait.
    """
    if not on:
        yield options
        return
    ask = _ask(job, options)
    with closing(open_engine(on)) as engine:
        lacking = engine.reserve(ask)
        if lacking and not options.queue:
            raise EngineError(
                f"{engine.name} lacks what the run needs: {lacking}; wait for it by --queue "
                "(queue=True in Python), or ask for less by hosts, workers or resources"
            )
        if lacking:
            attempt, controls = partial(engine.reserve, ask), options.controls
            with _listed(run_dir, job.name, engine.name):
                wait_until_free(attempt, lacking, every_s=ASK_S, controls=controls)
        endpoint = Endpoint(address=address or _address(engine.peer), port=free_port())
        yield replace(options, engine=engine, endpoint=endpoint)


def count_hosts(on: str) -> int:
    """How many hosts an engine has; see `open_engine`.

    Raises:
        JobError: There is no such engine.
        EngineError: It cannot be used.
    """
    with closing(open_engine(on)) as engine:
        return engine.num_hosts


def _listed(run_dir: str | Path | None, job: str, engine: str) -> AbstractContextManager[None]:
    return nullcontext() if run_dir is None else registry.waiting(Path(run_dir), job, engine)


def _ask(job: TrainRequest | ScriptJob, options: LaunchOptions) -> Ask:
    if job.workers == AUTO:
        raise JobError("workers=auto measures this host; with --on, give a number of workers")
    if options.code is not None:
        raise JobError(
            "the task is defined in this program, so other hosts cannot import it; with --on, put "
            "it into a file of its own and import it from there"
        )
    threads = 1 if job.threads_per_worker == AUTO else job.threads_per_worker
    resources = job.resources.model_copy(update={"cpus": max(job.resources.cpus, threads)})
    workers = -(-job.workers // job.hosts)
    return Ask(agents=job.hosts, workers=workers, resources=resources)


def _address(peer: str) -> str:
    try:
        return address_towards(peer)
    except OSError as error:
        raise JobError(
            f"the address of this host towards {peer or 'others'} is not known: {error}; give it "
            "by --address"
        ) from None
