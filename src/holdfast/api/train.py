"""`holdfast.train`: run a training job from Python; `holdfast train` makes the call `run_job`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.api.attended import UNATTENDED, Attendance, attend
from holdfast.api.reserve import ask_of, reserved
from holdfast.api.resolve.resolve import resolved_shards, resolved_workers
from holdfast.api.result import Result
from holdfast.checkpoint.sealing.seal import Seal
from holdfast.errors import HoldfastError, Interrupted, JobError
from holdfast.job import load
from holdfast.job.part import AUTO
from holdfast.job.train_job import TrainJob, TrainRequest
from holdfast.launch.environment import left_out
from holdfast.rundir.run_directory import CODE, RunDirectory, new_run
from holdfast.runs.controls import Controls
from holdfast.runs.hosts.placement import THIS_HOST, Placement
from holdfast.runs.run import LaunchOptions
from holdfast.sinks.callback import OnEvent
from holdfast.tasks import by_value, reference
from holdfast.tasks.program import belongs_to_program, calling_program


def train(
    task: str | Callable[..., Any],
    job: Mapping[str, Any] | TrainRequest | None = None,
    *,
    run_dir: str | Path | None = None,
    resume: bool = False,
    extend: bool = False,
    on: str = "",
    queue: bool = False,
    accept_older: bool = False,
    on_event: OnEvent | None = None,
) -> Result:
    """Train a model with one or more workers, and wait until the run ends.

    Args:
        task: A training function that takes a :class:`Session`, a task class, or the name of a
            built-in job or of a YAML file. Code that other processes cannot import, such as a
            function of a notebook or a closure, is sent to them; data are not.
        job: Keys of the job, such as ``{"workers": 2}``, which override those of a named job; or
            a complete :class:`Job`.
        run_dir: Directory for checkpoints, metrics and logs. Default: a new one in ``runs/``.
        resume: Continue the run in ``run_dir``, or the newest run of this job. Default: False.
        extend: Like ``resume``, for more epochs or steps than the run began with; the same as the
            job's key. Default: False.
        on: The engine that places the run's agents, such as ``"ray"``; by default they run on this
            host.
        queue: Wait until the CPUs, GPUs and memory that the run needs are free. Default: False, so
            that a run with ``resources`` is refused if they are not.
        accept_older: Resume from an older checkpoint also if the newest one that the run's record
            names is gone. Default: False, so that this is refused.
        on_event: Called in this process with each :class:`Event` of the run: steps, evaluations,
            failures, recoveries, checkpoints. If it raises, the run stops as with Ctrl-C.

    Returns:
        The result: status, metrics, the SHA-256 of the weights and the run directory.

    Raises:
        JobError: The job is not valid, or the run directory cannot be used.
        EngineError: What the run needs is not free.
        WorkerFailed: A worker failed and could not be replaced.
        KeyboardInterrupt: Ctrl-C ended the run, after a checkpoint; ``resume=True`` continues it.
        Exception: What ``on_event`` raised.

    Example::

        >>> result = holdfast.train("digits", {"workers": 2, "epochs": 1})
        >>> result.status
        'finished'
    """
    controls = Controls()
    try:
        reference.refuse_while_importing()
        request, code = request_of(task, job)
        if extend:
            request = request.model_copy(update={"extend": True})
        attendance = Attendance(on_event=on_event)
        if code is not None and not isinstance(task, str):
            attendance = Attendance(on_event=on_event, sidecar=partial(_with_source, task))
        result = run_job(
            request,
            LaunchOptions(code=code, controls=controls),
            run_dir=run_dir,
            resume=resume,
            attendance=attendance,
            on=on,
            queue=queue,
            accept_older=accept_older,
        )
    except HoldfastError as error:
        if isinstance(error, Interrupted) and controls.interrupted and not controls.abort:
            raise KeyboardInterrupt(str(error)) from None
        raise error.with_traceback(None) from error.__cause__  # the user's frames are in its cause
    if controls.interrupted:
        raise KeyboardInterrupt(f"stopped after step {result.steps}; resume=True continues it")
    return result


@contextmanager
def _with_source(task: Callable[..., Any], run_dir: Path) -> Iterator[None]:
    """Keep the source of a task that comes by value with its run, from the start."""
    (run_dir / CODE).write_text(by_value.source_of(task), encoding="utf-8")
    yield


def run_job(
    request: TrainRequest,
    options: LaunchOptions | None = None,
    *,
    run_dir: str | Path | None,
    resume: bool,
    placement: Placement = THIS_HOST,
    attendance: Attendance = UNATTENDED,
    on: str = "",
    address: str = "",
    queue: bool = False,
    accept_older: bool = False,
) -> Result:
    """Run a complete job; see `train`.

    Args:
        request: The job.
        options: Options to start and end its processes.
        run_dir: Directory of the run; by default a new one, or with `resume` the job's newest.
        resume: True to continue the run of the directory, as a job with `extend` does.
        placement: The hosts of the run, as far as the caller has chosen them.
        attendance: Watchers of the run.
        on, address, queue: See `reserved`.
        accept_older: True to resume also if the newest checkpoint is gone.

    Raises:
        HoldfastError: See `train`.
    """
    options = options or LaunchOptions()
    resume = resume or request.extend
    _check(request, options, placement, on)
    path = _path(request, run_dir, resume)
    begun = _begun(path) if resume else None
    with ExitStack() as held:
        # numbers for `auto`, the first of which need the whole host
        job, options = held.enter_context(resolved_workers(request, begun, options, queue=queue))
        placement = held.enter_context(
            reserved(job, path, placement, options.controls, on=on, address=address, queue=queue)
        )
        if request.weighs_shards and begun is None:
            job, options = held.enter_context(resolved_shards(job, options, placement))
        return attend(
            job,
            path,
            partial(train_result, job, path),
            options,
            placement,
            attendance,
            resume=resume,
            accept_older=accept_older,
        )


def train_result(job: TrainJob, run_dir: Path, summary: dict[str, Any]) -> Result:
    """Result of a run, of what a worker has reported."""
    data = None if job.data is None else job.data.name
    rate = summary.get("samples_per_s")
    tokens = job.tokens_per_sample
    tokens_per_s = round(rate * tokens, 1) if rate and tokens else None
    return Result(**summary, data=data, tokens_per_s=tokens_per_s, run_dir=run_dir)


def check_job(request: TrainRequest, run_dir: Path | None, *, resume: bool) -> None:
    """Refuse keys that a run refuses, as far as they are known before anything is measured.

    Args:
        request, run_dir, resume: See `run_job`.

    Raises:
        JobError: The run would not start.
    """
    begun = _begun(_path(request, run_dir, resume)) if resume else None
    if request.workers == AUTO and begun is None:
        request.check()
    else:
        request.resolved(begun)


def _check(request: TrainRequest, options: LaunchOptions, placement: Placement, on: str) -> None:
    """Refuse what cannot be run, before anything is written, and name what is left out."""
    if on and options.code is not None:
        raise JobError(
            "the task is defined in this program, so other hosts cannot import it; with --on, put "
            "it into a file of its own and import it from there"
        )
    if on:
        ask_of(request)
    if request.most_hosts > 1 and placement.endpoint is None and not on:
        raise JobError(
            f"hosts={request.most_hosts} needs holdfast coordinator, which lets other hosts join"
        )
    if placement.has_own_host and placement.engine is None and not on:
        Seal.of(request.checkpoint)
    if unset := left_out(os.environ, request.env):
        print(
            f"holdfast: workers do not get {', '.join(unset)} of this shell; the job sets such "
            f"variables: env.{unset[0]}=VALUE",
            file=sys.stderr,
        )


def _path(job: TrainRequest, run_dir: str | Path | None, resume: bool) -> Path:
    if run_dir is not None:
        return Path(run_dir)
    if resume:
        return RunDirectory.newest(job)
    return new_run(job.name)


def _begun(path: Path) -> TrainJob:
    """The job of a run that is resumed."""
    job = RunDirectory.job_of(path)
    if not isinstance(job, TrainJob):
        raise JobError(f"{path} is a run of a script; continue it with holdfast run")
    return job


def request_of(
    task: str | Callable[..., Any], job: Mapping[str, Any] | TrainRequest | None
) -> tuple[TrainRequest, bytes | None]:
    """The request for a job, as `train` takes it, and its task's code if that comes by value.

    Raises:
        JobError: The job is not valid.
    """
    if isinstance(task, str):
        if isinstance(job, TrainRequest):
            raise JobError("give a job's name or a Job, not both")
        request = load.load(task, values=job or {})
        if belongs_to_program(request.task):
            request = request.model_copy(update={"program": calling_program(request.task)})
        return request, None
    values = job.model_dump() if isinstance(job, TrainRequest) else dict(job or {})
    found = reference.of(task)
    name = by_value.plain_name(task)
    values = {"name": name, **values, "task": found or by_value.name_of(task)}
    values["program"] = calling_program(values["task"])
    return load.request(values, where=name), None if found else by_value.pack(task)
