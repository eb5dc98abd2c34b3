"""Choosing: from the trackers that a job names to trackers that can be opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final, assert_never

from holdfast.errors import JobError
from holdfast.job.spec import Job
from holdfast.job.trackers import (
    MLflowSpec,
    OpenTelemetrySpec,
    TensorBoardSpec,
    TrackerSpec,
    WandbSpec,
)
from holdfast.sinks.trackers.artifacts import Artifacts
from holdfast.sinks.trackers.mlflow import MLflow
from holdfast.sinks.trackers.otel import OpenTelemetry
from holdfast.sinks.trackers.sender import FOLDER, Sender
from holdfast.sinks.trackers.tensorboard import TensorBoard
from holdfast.sinks.trackers.tracker import Tracker
from holdfast.sinks.trackers.wandb import Wandb

_MODULES: Final = {
    "tensorboard": "tensorboard.summary",
    "mlflow": "mlflow",
    "wandb": "wandb",
    "otel": "opentelemetry.exporter.otlp.proto.http",
}
"""Modules that each tracker imports, once it is opened."""


def senders(
    job: Job, run_dir: Path, environment: Mapping[str, str]
) -> tuple[Sequence[Sender], Artifacts]:
    """A sender for each tracker of a job, and the files that they share.

    Raises:
        JobError: A library is not installed, or a setting is missing.
    """
    artifacts = Artifacts(run_dir, run_dir / FOLDER)
    chosen = [_tracker(spec, job, environment) for spec in job.trackers]
    return [Sender(tracker, run_dir, job, artifacts) for tracker in chosen], artifacts


def _tracker(spec: TrackerSpec, job: Job, environment: Mapping[str, str]) -> Tracker:
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
            return MLflow(uri, spec.experiment or job.name)
        case WandbSpec():
            return Wandb(spec.project or environment.get("WANDB_PROJECT") or job.name)
        case OpenTelemetrySpec():
            return OpenTelemetry(spec.endpoint)
        case _:
            assert_never(spec)


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of a package around it
        return False
