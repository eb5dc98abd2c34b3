"""holdfast trains PyTorch models on machines that fail and differ, with bit-identical results.

* `train` runs a training job and returns its `Result`.
* `Session` is what a training function receives: it attaches a model, iterates over `Shard`s and
  commits steps.
* `Job` holds the settings of a training job, `Dataset` is the protocol of data sets.
* `Event` is what `train` tells an `on_event` function.
* `tune` searches good values for keys of a job.
* `report` says how far a script is that `holdfast run` executes.
* `load_run` gives the tables and charts of a run.

Importing holdfast is fast: torch is imported when a name that needs it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.api.result import Result
    from holdfast.api.train import train
    from holdfast.data.dataset import Dataset
    from holdfast.errors import (
        CheckpointError,
        HoldfastError,
        JobError,
        NonFiniteError,
        OutOfMemory,
        WorkerFailed,
    )
    from holdfast.job.train_job import TrainJob as Job
    from holdfast.record.views.loaded_run import load_run
    from holdfast.sinks.callback import Event
    from holdfast.tuning.tune import tune
    from holdfast.worker.script.report import report
    from holdfast.worker.session import Session, is_worker, session
    from holdfast.worker.shard import Shard

_HOMES = {
    "CheckpointError": "holdfast.errors",
    "Dataset": "holdfast.data.dataset",
    "Event": "holdfast.sinks.callback",
    "HoldfastError": "holdfast.errors",
    "Job": "holdfast.job.train_job:TrainJob",
    "JobError": "holdfast.errors",
    "NonFiniteError": "holdfast.errors",
    "OutOfMemory": "holdfast.errors",
    "Result": "holdfast.api.result",
    "Session": "holdfast.worker.session",
    "Shard": "holdfast.worker.shard",
    "WorkerFailed": "holdfast.errors",
    "is_worker": "holdfast.worker.session",
    "load_run": "holdfast.record.views.loaded_run",
    "report": "holdfast.worker.script.report",
    "session": "holdfast.worker.session",
    "train": "holdfast.api.train",
    "tune": "holdfast.tuning.tune",
}

__all__ = [
    "CheckpointError",
    "Dataset",
    "Event",
    "HoldfastError",
    "Job",
    "JobError",
    "NonFiniteError",
    "OutOfMemory",
    "Result",
    "Session",
    "Shard",
    "WorkerFailed",
    "is_worker",
    "load_run",
    "report",
    "session",
    "train",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    module, _, inside = _HOMES[name].partition(":")
    return getattr(import_module(module), inside or name)
