"""Trackers: opens the trackers that a job names, and feeds them from the files of its run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, assert_never

from holdfast.errors import JobError
from holdfast.job import load
from holdfast.job.spec import Job
from holdfast.job.trackers import (
    MLflowSpec,
    OpenTelemetrySpec,
    TensorBoardSpec,
    TrackerSpec,
    WandbSpec,
)
from holdfast.record.sink import Ending, Sink
from holdfast.sinks.trackers.artifacts import Artifacts
from holdfast.sinks.trackers.mlflow import MLflow
from holdfast.sinks.trackers.otel import OpenTelemetry
from holdfast.sinks.trackers.sender import FOLDER, Sender, deliver
from holdfast.sinks.trackers.tensorboard import TensorBoard
from holdfast.sinks.trackers.tracker import TrackedJob, Tracker
from holdfast.sinks.trackers.wandb import Wandb
from holdfast.wire.rpc import RunStateMessage

DEADLINE_S: Final = 10.0
"""Most time that the end of a run waits for its trackers, seconds."""
_MODULES: Final = {
    "tensorboard": "tensorboard.summary",
    "mlflow": "mlflow",
    "wandb": "wandb",
    "otel": "opentelemetry.exporter.otlp.proto.http",
}
"""Modules that each tracker imports, once it is opened."""


class Trackers(Sink):
    """Starts a sender for each tracker of a job, and waits for them at the end.

    Args:
        job: Names the trackers.
        environment: The command's.
        run_dir: The run's directory.
        tell: Called with a line for people.

    Raises:
        JobError: A library is not installed, or a setting is missing.
    """

    def __init__(
        self,
        job: Job,
        environment: Mapping[str, str],
        run_dir: Path,
        tell: Callable[[str], None],
    ) -> None:
        self._senders, self._artifacts = senders(job, run_dir, environment)
        self._run_dir = run_dir
        self._tell = tell
        self._is_started = False
        self._in_trouble = set[str]()

    def on_progress(self, _: RunStateMessage) -> None:
        """Start with the run, and report a tracker that cannot be reached."""
        self._start()
        for sender in self._senders:
            if not sender.trouble:
                self._in_trouble.discard(sender.name)
            elif sender.name not in self._in_trouble:
                self._in_trouble.add(sender.name)
                self._tell(
                    f"holdfast: {sender.name} does not take what is sent ({sender.trouble}); the "
                    "run continues, and it is sent once it does"
                )

    def close(self, ending: Ending | None) -> None:
        """Wait until everything is sent or too late."""
        if ending is None:
            for sender in self._senders:
                sender.give_up()
            return
        self._start()
        deadline = time.monotonic() + DEADLINE_S
        unsent = deliver(self._senders, lambda _: time.monotonic() > deadline)
        for line in unsent:
            self._tell(f"holdfast: {line}; send it later with: holdfast track {self._run_dir}")
        if not unsent:
            self._artifacts.remove()

    def _start(self) -> None:
        if not self._is_started:
            self._is_started = True
            for sender in self._senders:
                sender.start()


def senders(
    job: Job, run_dir: Path, environment: Mapping[str, str]
) -> tuple[Sequence[Sender], Artifacts]:
    """A sender for each tracker of a job, and the files that they share.

    Raises:
        JobError: A library is not installed, or a setting is missing.
    """
    artifacts = Artifacts(run_dir, run_dir / FOLDER)
    chosen = [_tracker(spec, job.name, environment) for spec in job.trackers]
    tracked = TrackedJob(
        name=job.name,
        params=dict(_flat(job.model_dump(mode="json", exclude={"trackers", "program"}))),
        text=load.dump(job, without={"program"}),
        tokens_per_sample=job.tokens_per_sample,
    )
    return [Sender(tracker, run_dir, tracked, artifacts) for tracker in chosen], artifacts


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted keys and their values as text; those without a value are left out."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield prefix + key, value if isinstance(value, str) else json.dumps(value)


def _tracker(spec: TrackerSpec, job: str, environment: Mapping[str, str]) -> Tracker:
    if not _is_installed(_MODULES[spec.name]):
        raise JobError(
            f"trackers: {spec.name} is not installed: pip install 'holdfast[{spec.name}]'"
        )
    match spec:
        case TensorBoardSpec():
            return TensorBoard()
        case MLflowSpec():
            uri = spec.uri or environment.get("MLFLOW_TRACKING_URI")
            if not uri:
                raise JobError(
                    "trackers: mlflow has no address; set MLFLOW_TRACKING_URI, or uri as in "
                    "trackers=[{name: mlflow, uri: 'http://host:5000'}]"
                )
            return MLflow(uri, spec.experiment or job)
        case WandbSpec():
            return Wandb(spec.project or environment.get("WANDB_PROJECT") or job)
        case OpenTelemetrySpec():
            return OpenTelemetry(spec.endpoint)
        case _:
            assert_never(spec)


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of a package around it
        return False
