"""`holdfast.train`: run a job from Python. The command is this call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.checkpoint.names import checkpoint_name
from holdfast.checkpoint.store import CheckpointStore
from holdfast.core.plan import plan_step
from holdfast.engines.run import LaunchOptions, run_and_record
from holdfast.errors import JobError
from holdfast.job import load
from holdfast.job.train_job import TrainJob
from holdfast.observe import lines
from holdfast.observe.run_dir import METRICS, RunDirectory, new_run
from holdfast.tasks import reference


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
        exactness: `bit-exact` where the weights hang on the job alone; `order-exact` and how
            hardware or software have changed where the run was resumed on others; or why its
            numerics are not exact.
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
    exactness: str | None = None
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
        store = CheckpointStore.of_run(self.run_dir)
        return next((Path(store.location(name)) for name in store.committed()), None)

    @property
    def best_checkpoint(self) -> Path | None:
        """The checkpoint of the best evaluation, where the job looks for one."""
        if self.best is None:
            return None
        store = CheckpointStore.of_run(self.run_dir)
        return Path(store.location(checkpoint_name(int(self.best["step"]))))

    @property
    def figures(self) -> dict[str, Path]:
        """Pictures of the run, by name."""
        return {path.stem: path for path in sorted(self.run_dir.glob("*.png"))}

    def _lines(self) -> Iterator[dict[str, Any]]:
        return lines.read(self.run_dir / METRICS)

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
            "exactness": self.exactness,
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
    job: Mapping[str, Any] | TrainJob | None = None,
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
    return run_job(_job(task, job), LaunchOptions(), run_dir=run_dir, resume=resume)


def run_job(
    job: TrainJob, options: LaunchOptions, *, run_dir: str | Path | None, resume: bool
) -> Result:
    """Run a whole `Job` with options for its launch; see `train`."""
    plan_step(job.shards, job.workers, job.shards_per_worker)  # refuse before anything is written
    path = _path(job, run_dir, resume)
    return run_and_record(
        job, path, lambda found: _result(found, job, path), options, resume=resume
    )


def _path(job: TrainJob, run_dir: str | Path | None, resume: bool) -> Path:
    if run_dir is not None:
        return Path(run_dir)
    if resume:
        return RunDirectory.newest(job)
    return new_run(job.name)


def _job(task: str | Callable[..., Any], job: Mapping[str, Any] | TrainJob | None) -> TrainJob:
    if isinstance(task, str):
        if isinstance(job, TrainJob):
            raise JobError("give a job's name or a Job, not both")
        return load.load(task, values=job or {})
    values = job.model_dump() if isinstance(job, TrainJob) else dict(job or {})
    values = {"name": task.__name__, **values, "task": reference.of(task)}
    return load.check(values, where=task.__qualname__)


def _result(found: dict[str, Any], job: TrainJob, path: Path) -> Result:
    return Result(
        status=found["status"],
        data=None if job.data is None else job.data.name,
        steps=found.get("steps", 0),
        loss=found.get("loss"),
        metrics=found.get("metrics", {}),
        best=found.get("best"),
        samples_per_s=found.get("samples_per_s"),
        seconds=found.get("seconds", {}),
        exactness=found.get("exactness"),
        weights_sha256=found.get("weights_sha256"),
        run_dir=path,
    )
