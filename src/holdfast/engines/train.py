"""`holdfast.train`: run a job from Python. The command is this call."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from holdfast.agent.forks import ForkServer
from holdfast.agent.spawn import Spawned
from holdfast.arena.memory import Arena
from holdfast.checkpoint import manifest
from holdfast.engines import local
from holdfast.engines.controls import Controls
from holdfast.errors import HoldfastError, JobError
from holdfast.job import load
from holdfast.job.spec import Job
from holdfast.observe import curve, lines
from holdfast.observe.follower import Follower
from holdfast.observe.notify import Notifier
from holdfast.observe.run_dir import RunDirectory
from holdfast.observe.tee import Tee
from holdfast.observe.terminal import RunView, closing_table
from holdfast.tasks import reference

RUNS: Final = Path("runs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a run ended.

    Attributes:
        status: `finished`, or `stopped` by a signal; a stopped run can be resumed.
        data: The name of the data set, which begins with `synthetic-` where the data are made up;
            None where the task brings its own.
        steps: Steps committed, over all of the run's lives.
        loss: Mean loss of the last step; None if there was none, or it was not finite.
        metrics: The last evaluation.
        best: Where the job looks for a best evaluation, its `value` and the `step` it came after.
        samples_per_s: Samples a second in this life, start-up excluded.
        seconds: What a worker has spent its time on in this life: `compute`, `reduce`, `wait` (for
            the others), `data` and so on, seconds, the mean over the workers.
        weights_sha256: SHA-256 over all parameters and buffers in name order.
        run_dir: Where everything lies.
    """

    status: str
    data: str | None
    steps: int
    loss: float | None
    metrics: dict[str, float] = field(default_factory=dict)
    best: dict[str, float] | None = None
    samples_per_s: float | None
    seconds: dict[str, float] = field(default_factory=dict)
    weights_sha256: str | None
    run_dir: Path

    @property
    def history(self) -> dict[str, list[Any]]:
        """A table of the steps: `step`, `epoch`, `loss`, `norm`, `lr`, `samples`, `seconds`, rank
        0's seconds in each phase (`compute_s`, …), and what was logged; a list a column. What is
        not finite is None. Where steps were left out, `skipped` is True for those.
        """
        return lines.columns(
            {key: value for key, value in line.items() if not isinstance(value, dict)}
            | {f"{phase}_s": seconds for phase, seconds in line["phases"].items()}
            | line["logged"]
            for line in self._lines()
            if "loss" in line
        )

    @property
    def evaluations(self) -> dict[str, list[Any]]:
        """A table of the evaluations: the steps before each, and a column a metric."""
        return lines.columns(
            {"step": line["step"], **line["evaluation"]}
            for line in self._lines()
            if "evaluation" in line
        )

    @property
    def checkpoint(self) -> Path | None:
        """The newest checkpoint."""
        return next(iter(manifest.committed(self.run_dir / "checkpoints")), None)

    @property
    def best_checkpoint(self) -> Path | None:
        """The checkpoint of the best evaluation, where the job looks for one."""
        if self.best is None:
            return None
        return self.run_dir / "checkpoints" / manifest.directory_name(int(self.best["step"]))

    @property
    def figures(self) -> dict[str, Path]:
        """Pictures of the run, by name."""
        return {path.stem: path for path in sorted(self.run_dir.glob("*.png"))}

    def _lines(self) -> Iterator[dict[str, Any]]:
        return lines.read(self.run_dir / "metrics.jsonl")

    def as_dict(self) -> dict[str, Any]:
        """The result as plain data, metrics beside the rest; JSON knows no NaN, so None is one.

        A metric that is called like one of the others is `evaluation.` and its name.
        """
        facts = {
            "status": self.status,
            "data": self.data,
            "steps": self.steps,
            "loss": self.loss,
            **({} if self.best is None else {"best": self.best}),
            "samples_per_s": self.samples_per_s,
            "seconds": self.seconds,
            "weights_sha256": self.weights_sha256,
            "run_dir": str(self.run_dir),
        }
        metrics = {
            f"evaluation.{name}" if name in facts else name: lines.number(value)
            for name, value in self.metrics.items()
        }
        return facts | metrics


def train(
    task: str | Callable[..., Any],
    job: Mapping[str, Any] | Job | None = None,
    *,
    run_dir: str | Path | None = None,
    resume: bool = False,
) -> Result:
    """Train and wait for the end.

    Args:
        task: A function that takes the session, a task class, or the name of a built-in job or
            of a YAML file. A function or class must be importable: at the top level of a file.
        job: Keys of the job, over those of a named job; or a whole `Job`.
        run_dir: The run's directory; by default a new one below `runs/`.
        resume: Go on with the run in `run_dir`, or with the newest run of this job.

    Raises:
        JobError: The job cannot be run as it stands.
        WorkerFailed: A worker died or its code raised.
    """
    return run_job(_job(task, job), run_dir=run_dir, resume=resume)


def run_job(
    job: Job,
    *,
    run_dir: str | Path | None,
    resume: bool,
    tee: Collection[int] = (),
    forks: ForkServer | Spawned | None = None,
    beside: Callable[[Path], AbstractContextManager[object]] = nullcontext,
) -> Result:
    """Run a whole `Job`; see `train`. What the workers in `tee` print is shown too.

    A fork server may be lent, or be on its way already. `beside` is called with the run's directory
    once that is this run's, and what it gives is entered before the run and left when it has ended.
    """
    job.plan()  # refuse a job that cannot be shared out before anything is written
    notifier = Notifier(job, os.environ)
    path = _path(job, run_dir, resume)
    try:
        with RunDirectory(path, job, resume=resume) as directory:
            with beside(path):
                found = _followed(job, directory, notifier, tee, forks)
            result = _result(found, job, path)
            try:
                _keep(result)
            except OSError as error:  # the weights are safe: the result is worth more than its copy
                _complain(f"{error}; the result is not kept there")
            notifier.last = result.status, closing_table(result.as_dict())
            return result
    finally:
        notifier.close(path, _complain)


def _followed(
    job: Job,
    directory: RunDirectory,
    notifier: Notifier,
    tee: Collection[int],
    forks: ForkServer | Spawned | None,
) -> dict[str, Any]:
    """Run a job and show what happens meanwhile; returns what a worker reports of it."""
    view = RunView(Tee(directory.logs, tee))
    follower = Follower(directory.path, view.tell, notifier)

    def watch(arena: Arena) -> None:
        follower.watch()
        view.watch(arena)

    try:
        return local.run(job, directory, Controls(watch=watch), forks)
    except HoldfastError as error:
        notifier.last = "failed", str(error)
        raise
    finally:
        follower.watch()
        view.close()


def _complain(line: str) -> None:
    print(f"holdfast: {line}", file=sys.stderr)


def _keep(result: Result) -> None:
    path = result.run_dir
    (path / "result.json").write_text(json.dumps(result.as_dict(), indent=1) + "\n")
    if result.steps:
        curve.draw(path / "metrics.jsonl", path / "loss.png")


def _path(job: Job, run_dir: str | Path | None, resume: bool) -> Path:
    if run_dir is not None:
        return Path(run_dir)
    if resume:
        return RunDirectory.newest(RUNS, job)
    return RUNS / f"{job.name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def _job(task: str | Callable[..., Any], job: Mapping[str, Any] | Job | None) -> Job:
    if isinstance(task, str):
        if isinstance(job, Job):
            raise JobError("give a job's name or a Job, not both")
        return load.load(task, values=job or {})
    values = job.model_dump() if isinstance(job, Job) else dict(job or {})
    values = {"name": task.__name__, **values, "task": reference.of(task)}
    return load.check(values, where=task.__qualname__)


def _result(found: dict[str, Any], job: Job, path: Path) -> Result:
    return Result(
        status=found["status"],
        data=None if job.data is None else job.data.name,
        steps=found.get("steps", 0),
        loss=found.get("loss"),
        metrics=found.get("metrics", {}),
        best=found.get("best"),
        samples_per_s=found.get("samples_per_s"),
        seconds=found.get("seconds", {}),
        weights_sha256=found.get("weights_sha256"),
        run_dir=path,
    )
