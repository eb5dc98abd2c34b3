"""MLflow: a run of an experiment on a server.

If the outcome of a request is unknown, the server is asked for the newest value of each metric, and
only what comes after is sent.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from holdfast.sinks.trackers.tracker import Batch, TrackedRun

MAX_METRICS: Final = 1000
MAX_PARAMS: Final = 100
"""Most metrics, and most parameters, that a request may have."""
MAX_NAME: Final = 250
MAX_VALUE: Final = 500
"""Characters of a name, and of a parameter or tag, that every version of the server takes."""
_FORBIDDEN: Final = re.compile(r"[^\w./ -]", re.ASCII)
_RUN_ID: Final = "holdfast.run_id"
_STATUS: Final = {"finished": "FINISHED", "failed": "FAILED"}
_ENVIRONMENT: Final = {
    "DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # we try again
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
"""Variables that the library reads when it is imported, or at each request; a user's own stay."""


class MLflow:
    """Sends to one run of MLflow; see `Tracker`.

    Args:
        uri: Address of the server.
        experiment: Name of the experiment, which is created if there is none.
    """

    name = "mlflow"
    takes_files = True

    def __init__(self, uri: str, experiment: str) -> None:
        self.kept: dict[str, Any] = {}
        self._uri = uri
        self._experiment = experiment
        self._client: Any = None
        self._newest: Mapping[str, int] | None = None  # steps by metric; None: must be asked for

    def open(self, run: TrackedRun, kept: Mapping[str, Any]) -> bool:
        """Find the run by its id or tag, or create it; add parameters that it does not have."""
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient(tracking_uri=self._uri)
        known = kept.get("run_id")
        found = None
        experiment = self._experiment_id()
        query = f"tags.`{_RUN_ID}` = '{run.run_id}'"
        for each in self._client.search_runs([experiment], query):
            found = each if found is None or each.info.run_id == known else found
        if found is None:
            tags = {"mlflow.runName": run.name, _RUN_ID: run.run_id}
            found = self._client.create_run(experiment, tags=tags | _tags(run.tags))
        run_id = found.info.run_id
        missing = [
            Param(key, value[:MAX_VALUE])
            for key, value in ((_name(key), value) for key, value in run.job.params.items())
            if key not in found.data.params
        ]
        for start in range(0, len(missing), MAX_PARAMS):
            self._client.log_batch(run_id, params=missing[start : start + MAX_PARAMS])
        if found.info.status != "RUNNING":
            self._client.update_run(run_id, status="RUNNING")
        self.kept = {"run_id": run_id}
        self._newest = None
        return known in (None, run_id)

    def send(self, batch: Batch) -> None:
        """Send the points of a batch that the server does not have."""
        from mlflow.entities import Metric

        run_id = self.kept["run_id"]
        newest = self._newest_on_server(run_id) if self._newest is None else self._newest
        metrics = [
            Metric(_name(point.name), point.value, round(1000 * point.time_unix_s), point.step)
            for point in batch.points
            if point.step > newest.get(_name(point.name), -1)
        ]
        self._newest = None
        for start in range(0, len(metrics), MAX_METRICS):
            self._client.log_batch(run_id, metrics=metrics[start : start + MAX_METRICS])
        self._newest = {}

    def finish(self, status: str, files: Sequence[Path]) -> None:
        """Send the files and set the run's status."""
        run_id = self.kept["run_id"]
        for path in files:
            folder = "model" if path.suffix == ".safetensors" else None
            self._client.log_artifact(run_id, str(path), folder)
        self._client.set_terminated(run_id, _STATUS.get(status, "KILLED"))

    def close(self) -> None:
        """A client holds nothing."""

    def _experiment_id(self) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        return str(
            found.experiment_id if found else self._client.create_experiment(self._experiment)
        )

    def _newest_on_server(self, run_id: str) -> dict[str, int]:
        data = self._client.get_run(run_id).data.to_proto()
        return {each.key: each.step for each in data.metrics}


def _name(name: str) -> str:
    """A name as MLflow takes it."""
    return _FORBIDDEN.sub("_", name)[:MAX_NAME]


def _tags(tags: Mapping[str, str]) -> dict[str, str]:
    named = {f"holdfast.{name}": value[:MAX_VALUE] for name, value in tags.items()}
    if "git.commit" in tags:
        named["mlflow.source.git.commit"] = tags["git.commit"]
    return named
