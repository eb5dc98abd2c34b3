"""Outcome: the tables and the winner that a search leaves behind.

trials.csv         a row per trial
result.json        the best trial, and how the search was made
best.yaml          its job: `holdfast train best.yaml` gives the same weights
best.safetensors   the weights of its best evaluation
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.core.tuning.search import SearchState, Trial
from holdfast.errors import JobError
from holdfast.job import load
from holdfast.rundir.run_directory import RESULT
from holdfast.tuning.search import trial_dir
from holdfast.tuning.settings import SearchSettings

TABLE: Final = "trials.csv"
BEST_JOB: Final = "best.yaml"
BEST_WEIGHTS: Final = "best.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """A trial of a search that has ended.

    Attributes:
        number: Its number.
        values: The values of the keys that were searched.
        value: Its best value of the metric; None if it was never finite.
        epochs: Epochs until its last evaluation.
        status: `finished`, `stopped` by a stop rule or the budget, or `failed`.
        reason: Why it was stopped, or how it failed.
        weights_sha256: SHA-256 of its last weights; None if it has none, or was stopped.
        run_dir: Its run directory.
    """

    number: int
    values: dict[str, Any]
    value: float | None
    epochs: int
    status: str
    reason: str
    weights_sha256: str | None
    run_dir: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneResult:
    """The result of a search.

    Attributes:
        metric, goal: The metric of an evaluation that was searched for its highest or lowest value.
        best: The best trial; None if all have failed.
        trials: All trials, by number.
        path: Directory of the search: `best.yaml`, `best.safetensors`, `trials.csv` and so on.
    """

    metric: str
    goal: str
    best: TrialResult | None
    trials: Sequence[TrialResult]
    path: Path

    def as_dict(self) -> dict[str, Any]:
        """The result as plain data."""
        return {
            "metric": self.metric,
            "goal": self.goal,
            "best": None if self.best is None else _plain(self.best),
            "trials": [_plain(each) for each in self.trials],
            "run_dir": str(self.path),
        }


def write(directory: Path, settings: SearchSettings, state: SearchState) -> TuneResult:
    """Write the files of a search that has ended, and return its result.

    Raises:
        CheckpointError: The weights of the best trial are damaged.
    """
    trials = [_result(directory, trial, state) for trial in state.trials if trial.ended]
    best = next((each for each in trials if state.best and each.number == state.best.number), None)
    result = TuneResult(
        metric=settings.metric, goal=settings.goal, best=best, trials=trials, path=directory
    )
    (directory / RESULT).write_text(json.dumps(result.as_dict(), indent=1) + "\n")
    _write_table(directory / TABLE, settings, trials)
    if best is not None:
        job = load.check(settings.job_of(best.values), f"trial {best.number}")
        (directory / BEST_JOB).write_text(load.dump(job), encoding="utf-8")
        _write_weights(directory, best)
    return result


def _write_weights(directory: Path, best: TrialResult) -> None:
    from holdfast.checkpoint.exports.export import export  # imports torch
    from holdfast.checkpoint.find import find_checkpoint

    try:
        checkpoint = find_checkpoint(best.run_dir, best=True)
    except JobError:  # the user has removed it
        return
    export(checkpoint, directory / BEST_WEIGHTS, replace=True)


def _write_table(path: Path, settings: SearchSettings, trials: Sequence[TrialResult]) -> None:
    keys = list(settings.space)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        columns = ("epochs", "status", "reason", "weights_sha256")
        table.writerow(["trial", *keys, settings.metric, *columns])
        for each in trials:
            values = [each.values.get(key, "") for key in keys]
            facts = [getattr(each, column) for column in columns]
            table.writerow([each.number, *values, each.value, *facts])


def _result(directory: Path, trial: Trial, state: SearchState) -> TrialResult:
    assert trial.ended is not None
    return TrialResult(
        number=trial.number,
        values=trial.values,
        value=trial.value(state.plan.goal),
        epochs=trial.epoch,
        status=trial.ended.status,
        reason=trial.stopping or trial.ended.error,
        weights_sha256=None if trial.stopping else trial.ended.weights_sha256,
        run_dir=trial_dir(directory, trial.number),
    )


def _plain(trial: TrialResult) -> dict[str, Any]:
    return {
        "trial": trial.number,
        "values": trial.values,
        "value": trial.value,
        "epochs": trial.epochs,
        "status": trial.status,
        "reason": trial.reason,
        "weights_sha256": trial.weights_sha256,
        "run_dir": str(trial.run_dir),
    }
