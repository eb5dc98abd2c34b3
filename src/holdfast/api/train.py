"""`holdfast.train`: run a training job from Python; `holdfast train` makes this call."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.api.reserve import placed
from holdfast.api.resolve.shards import with_best_shards
from holdfast.api.resolve.workers import divisions, fastest
from holdfast.checkpoint.find import find_checkpoint
from holdfast.checkpoint.names import checkpoint_name
from holdfast.checkpoint.sealing.seal import Seal
from holdfast.checkpoint.store import CheckpointStore
from holdfast.core.step.plan import plan_step
from holdfast.errors import HoldfastError, Interrupted, JobError
from holdfast.job import load
from holdfast.job.part import AUTO
from holdfast.job.train_job import TrainJob, TrainRequest
from holdfast.launch.environment import left_out
from holdfast.launch.fork_client import ForkServer
from holdfast.linux.cores import usable_cores
from holdfast.rundir import json_lines
from holdfast.rundir.run_directory import CODE, METRICS, RunDirectory, new_run
from holdfast.runs.hosts.host_claims import claimed
from holdfast.runs.run import LaunchOptions, run_and_record
from holdfast.runs.run_fork_server import fork_server
from holdfast.sinks.callback import OnEvent
from holdfast.tasks import by_value, reference

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a training run.

    Attributes:
        status: `finished`, or `stopped` by a signal; a stopped run can be resumed.
        data: Name of the data set; names of synthetic data begin with `synthetic-`. None if the
            task has its own data.
        steps: Committed steps, over all attempts.
        loss: Mean loss of the last step; None if there was none, or it was not finite.
        metrics: The last evaluation: numbers, or lists of them, by name.
        best: With `evaluation.best`: the best `value` and its `step`.
        samples_per_s: Samples per second in this attempt, without start-up.
        seconds: Seconds per phase in this attempt, the mean over the workers: `data`, `forward`,
            `backward`, `collect`, `reduce`, `wait` (for other workers) and so on.
        bottleneck: What limited the run in its last steps, in words; None if it was too short.
        exactness: `bit-exact` if the weights depend on the job only; `order-exact` and the changes,
            if the run was resumed on other hardware or software; or why its numerics are not exact.
        weights_sha256: SHA-256 over all parameters and buffers in name order.
        weights: With a model over frozen weights, where these come from and the bytes of each part:
            `base_bytes` once a host, `replica_bytes` and `gradient_bytes` of each worker.
        run_dir: The run directory.
    """

    status: str
    data: str | None
    steps: int
    loss: float | None
    metrics: dict[str, Any] = field(default_factory=dict)
    best: dict[str, float] | None = None
    samples_per_s: float | None
    seconds: dict[str, float] = field(default_factory=dict)
    bottleneck: str | None = None
    exactness: str | None = None
    weights_sha256: str | None
    weights: dict[str, Any] | None = None
    run_dir: Path

    @property
    def history(self) -> dict[str, list[Any]]:
        """The table of steps, one list per column: `step`, `epoch`, `loss`, `norm`, `lr`,
        `samples`, `seconds`, rank 0's seconds in each phase (`forward_s`, …), and logged values.
        Numbers that are not finite are None. `skipped` is True for steps that changed nothing.
        """
        return json_lines.columns(
            json_lines.step_row(line) for line in self._lines() if "loss" in line
        )

    @property
    def evaluations(self) -> dict[str, list[Any]]:
        """The table of evaluations, one list per column: `step` and each metric."""
        return json_lines.columns(
            {"step": line["step"], **line["evaluation"]}
            for line in self._lines()
            if "evaluation" in line
        )

    @property
    def checkpoint(self) -> Path | None:
        """The newest checkpoint."""
        store = CheckpointStore.of_run(self.run_dir)
        return next((Path(store.location(name)) for name in store.committed()), None)

    @property
    def best_checkpoint(self) -> Path | None:
        """The checkpoint of the best evaluation; None without `evaluation.best`."""
        if self.best is None:
            return None
        store = CheckpointStore.of_run(self.run_dir)
        return Path(store.location(checkpoint_name(int(self.best["step"]))))

    def state_dict(self, of: str | None = None, *, best: bool = False) -> dict[str, Tensor]:
        """The trained weights, verified: what `load_state_dict` of a model takes.

        Args:
            of: Name of a registered module, such as an average, or of one of several models.
            best: Take the best checkpoint instead of the newest.

        Raises:
            CheckpointError: The checkpoint is damaged.
            JobError: The run has no such checkpoint, or nothing called `of`.
        """
        from holdfast.checkpoint.exports import weights  # imports torch

        return weights.read_checkpoint(find_checkpoint(self.run_dir, best=best), of)

    def load_into(self, model: nn.Module, of: str | None = None, *, best: bool = False) -> None:
        """Load the trained weights into `model`, all of them; see `state_dict`.

        Raises:
            JobError: `model` has other tensors.
        """
        from holdfast.checkpoint.exports.weights import load_into

        load_into(model, self.state_dict(of, best=best), self.run_dir)

    @property
    def figures(self) -> dict[str, Path]:
        """Plots of the run, by name."""
        return {path.stem: path for path in sorted(self.run_dir.glob("*.png"))}

    def _lines(self) -> Iterator[dict[str, Any]]:
        return json_lines.read(self.run_dir / METRICS)

    def as_dict(self) -> dict[str, Any]:
        """The result as a flat dictionary for JSON; numbers that are not finite are None.

        A metric with the name of another entry gets the prefix `evaluation.`.
        """
        facts = {
            "status": self.status,
            "data": self.data,
            "steps": self.steps,
            "loss": self.loss,
            **({} if self.best is None else {"best": self.best}),
            "samples_per_s": self.samples_per_s,
            "seconds": self.seconds,
            "bottleneck": self.bottleneck,
            "exactness": self.exactness,
            "weights_sha256": self.weights_sha256,
            **({} if self.weights is None else {"weights": self.weights}),
            "run_dir": str(self.run_dir),
        }
        metrics = {
            f"evaluation.{name}" if name in facts else name: json_lines.finite(value)
            for name, value in self.metrics.items()
        }
        return facts | metrics


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
        extend: Like ``resume``, for more epochs or steps than the run began with. Default: False.
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
    try:
        options = LaunchOptions(on_event=on_event, queue=queue, accept_older=accept_older)
        return _train(task, job, run_dir, on, options, resume=resume, extend=extend)
    except HoldfastError as error:
        raise error.with_traceback(None) from error.__cause__  # the user's frames are in its cause


def _train(
    task: str | Callable[..., Any],
    job: Mapping[str, Any] | TrainRequest | None,
    run_dir: str | Path | None,
    on: str,
    options: LaunchOptions,
    *,
    resume: bool,
    extend: bool,
) -> Result:
    reference.refuse_while_importing()
    request, code = request_of(task, job)
    if extend:
        request = request.model_copy(update={"extend": True})
    options = replace(options, code=code)
    if code is not None and not isinstance(task, str):
        options = replace(options, sidecar=partial(_with_source, task))
    try:
        with placed(request, options, on, run_dir=run_dir) as there:
            result = run_job(request, there, run_dir=run_dir, resume=resume or extend)
    except Interrupted as error:
        if options.controls.interrupted and not options.controls.abort:
            raise KeyboardInterrupt(str(error)) from None
        raise
    if options.controls.interrupted:
        raise KeyboardInterrupt(f"stopped after step {result.steps}; resume=True continues it")
    return result


@contextmanager
def _with_source(task: Callable[..., Any], run_dir: Path) -> Iterator[None]:
    """Keep the source of a task that comes by value with its run, from the start."""
    (run_dir / CODE).write_text(by_value.source_of(task), encoding="utf-8")
    yield


def run_job(
    request: TrainRequest, options: LaunchOptions, *, run_dir: str | Path | None, resume: bool
) -> Result:
    """Run a complete job with launch options; see `train`."""
    if request.hosts > 1 and options.endpoint is None:
        raise JobError(
            f"hosts={request.hosts} needs holdfast coordinator, which lets other hosts join"
        )
    if options.has_own_host and options.engine is None:
        Seal.of(request.checkpoint)  # refuse before anything is written
    _name_left_out(request)
    path = _path(request, run_dir, resume)
    if request.workers == AUTO and not resume:
        if options.queue or request.resources.is_given:
            raise JobError(
                "workers=auto measures the whole host; with resources or --queue, give a number "
                "of workers"
            )
        jobs = divisions(request, usable_cores())
        with _forks(jobs[0], options) as forks:
            options = replace(options, forks=forks)
            job = fastest(jobs, options)
            return _run(job, path, options, resume=False, weighs_shards=request.weighs_shards)
    job = request.resolved(_begun(path) if resume else None)
    weighs_shards = request.weighs_shards and not resume
    return _run(job, path, options, resume=resume, weighs_shards=weighs_shards)


def _name_left_out(request: TrainRequest) -> None:
    """Name variables of this shell that would otherwise be missed without a word."""
    if unset := left_out(os.environ, request.env):
        print(
            f"holdfast: workers do not get {', '.join(unset)} of this shell; the job sets such "
            f"variables: env.{unset[0]}=VALUE",
            file=sys.stderr,
        )


def _forks(job: TrainJob, options: LaunchOptions) -> AbstractContextManager[ForkServer]:
    """A fork server for several runs, which ends with the block unless it was lent."""
    given = options.forks
    if isinstance(given, ForkServer):
        return nullcontext(given)
    return fork_server(job, given, options.code)


def _run(
    job: TrainJob, path: Path, options: LaunchOptions, *, resume: bool, weighs_shards: bool
) -> Result:
    plan_step(job.shards, job.workers, job.shards_per_worker)  # refuse before anything is written
    with ExitStack() as held:
        there = held.enter_context(claimed(job, path, options))
        if weighs_shards and job.workers > 1:
            if job.hosts == 1 and there.engine is None:
                there = replace(there, forks=held.enter_context(_forks(job, there)))
            job = with_best_shards(job, there)
        return run_and_record(
            job, path, lambda summary: _result(summary, job, path), there, resume=resume
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
        return load.load(task, values=job or {}), None
    values = job.model_dump() if isinstance(job, TrainRequest) else dict(job or {})
    found, name = reference.of(task), by_value.plain_name(task)
    values = {"name": name, **values, "task": found or by_value.name_of(task)}
    return load.request(values, where=name), None if found else by_value.pack(task)


def _result(summary: dict[str, Any], job: TrainJob, path: Path) -> Result:
    return Result(
        status=summary["status"],
        data=None if job.data is None else job.data.name,
        steps=summary.get("steps", 0),
        loss=summary.get("loss"),
        metrics=summary.get("metrics", {}),
        best=summary.get("best"),
        samples_per_s=summary.get("samples_per_s"),
        seconds=summary.get("seconds", {}),
        bottleneck=summary.get("bottleneck"),
        exactness=summary.get("exactness"),
        weights_sha256=summary.get("weights_sha256"),
        weights=summary.get("weights"),
        run_dir=path,
    )
