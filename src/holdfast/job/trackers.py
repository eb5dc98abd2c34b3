"""Trackers of a job: where a run's parameters, metrics and artifacts are sent while it runs.

No credentials: `job.yaml`, which every run directory has, holds what is written here. Each tracker
takes them from environment variables of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from holdfast.job.part import Address, Spec


class TensorBoardSpec(Spec):
    """An event file in the run directory, below `tensorboard/`."""

    name: Literal["tensorboard"]


class MLflowSpec(Spec):
    """A server of MLflow."""

    name: Literal["mlflow"]
    uri: Address | None = None
    """Address of the server; by default `MLFLOW_TRACKING_URI` says it."""
    experiment: Annotated[str, Field(min_length=1)] | None = None
    """Name of the experiment; by default the job's."""


class WandbSpec(Spec):
    """Weights & Biases, where `WANDB_MODE` and `wandb login` say; `offline` needs no account."""

    name: Literal["wandb"]
    project: Annotated[str, Field(min_length=1)] | None = None
    """Name of the project; by default the job's."""


class OpenTelemetrySpec(Spec):
    """A receiver of OTLP over HTTP, which gets a trace of each recovery."""

    name: Literal["otel"]
    endpoint: Address | None = None
    """Address of the receiver without the path; by default `OTEL_EXPORTER_OTLP_ENDPOINT` and the
    other variables of OpenTelemetry say it."""


TrackerSpec: TypeAlias = TensorBoardSpec | MLflowSpec | WandbSpec | OpenTelemetrySpec

NAMES: Final = ("tensorboard", "mlflow", "wandb", "otel")
CREDENTIALS: Final[Mapping[str, tuple[str, ...]]] = {
    "mlflow": ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"),
    "wandb": ("WANDB_API_KEY",),
    "otel": ("OTEL_EXPORTER_OTLP_HEADERS",),
}
"""By tracker, the environment variables of its credentials; any of them may be absent."""


def _named(given: object) -> object:
    """A list of mappings, each with the name of another tracker; a name alone is enough."""
    if not isinstance(given, list | tuple):
        raise ValueError(f"should be a list of trackers, such as [{NAMES[0]}]")
    specs: list[Any] = [{"name": each} if isinstance(each, str) else each for each in given]
    names = [_name_of(each) for each in specs]
    for name in names:
        if name not in NAMES:
            raise ValueError(
                f"no tracker {name!r:.100}; name {', '.join(NAMES[:-1])} or {NAMES[-1]}"
            )
        if names.count(name) > 1:
            raise ValueError(f"{name} is given twice; a run has one of each")
    return specs


def _name_of(spec: object) -> object:
    return spec.get("name") if isinstance(spec, Mapping) else getattr(spec, "name", spec)


Trackers = Annotated[
    tuple[Annotated[TrackerSpec, Field(discriminator="name")], ...], BeforeValidator(_named)
]
