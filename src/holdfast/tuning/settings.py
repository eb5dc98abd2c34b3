"""Settings of a search: what `search.yaml` holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError

from holdfast.core.tuning.rungs import RuleName, StopRule
from holdfast.core.tuning.search import Goal, SearchPlan
from holdfast.errors import JobError
from holdfast.job import load, mistakes
from holdfast.job.part import Count, Spec
from holdfast.job.train_job import TrainRequest
from holdfast.linux.files import replace_synced
from holdfast.rundir.run_directory import SEARCH
from holdfast.tuning import space as spaces
from holdfast.tuning.space import Space


class StopSettings(Spec):
    """The stop rule; see `core.tuning.rungs`."""

    name: RuleName = "none"
    eta: Annotated[int, Field(ge=2)] = 3
    min_epochs: Count = 1
    min_trials: Count = 4


class SearchSettings(Spec):
    """All that decides what a search does.

    Attributes:
        job: Values of the job that is varied.
        space: The keys that vary, as `Space.plain`.
        first: Values of the first trial; None if they are suggested like all others.
        sampler: The sampler and all of its arguments.
        stop: The stop rule.
        metric, goal: The metric of an evaluation that is searched for its highest or lowest value.
        trials: Number of trials.
        at_once: Number that run at the same time.
        strict, every: See `SearchPlan`.
        seed: Seed of the sampler.
        budget_s: Seconds after which no trial continues, over all commands; None: not limited.
    """

    job: dict[str, Any]
    space: dict[str, Any]
    first: dict[str, Any] | None = None
    sampler: dict[str, Any]
    stop: StopSettings = StopSettings()
    metric: str
    goal: Literal["max", "min"]
    trials: Count
    at_once: Count
    strict: bool = False
    every: Count | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    budget_s: Annotated[float, Field(gt=0)] | None = None

    @property
    def dimensions(self) -> Space:
        """The space."""
        return spaces.of_values(self.space)

    @property
    def name(self) -> str:
        """The job's name."""
        return str(self.job["name"])

    def plan(self) -> SearchPlan:
        """How the search decides."""
        is_grid = self.sampler["name"] == "grid"
        return SearchPlan(
            trials=min(self.trials, len(self.dimensions.grid())) if is_grid else self.trials,
            at_once=self.at_once,
            goal=self.goal,
            epochs=load.request(self.job, self.name).epochs,
            stop=StopRule(**self.stop.model_dump()),
            strict=self.strict,
            every=self.every,
        )

    def job_of(self, values: spaces.Values) -> dict[str, Any]:
        """The values of the job of a trial; its best checkpoint is kept."""
        best = {"evaluation.best": self.metric, "evaluation.goal": self.goal}
        return spaces.applied(self.job, best | dict(values))

    def write(self, directory: Path) -> None:
        """Write `search.yaml`."""
        text = yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)
        replace_synced(directory / SEARCH, text.encode())


def read(directory: Path) -> SearchSettings:
    """The settings of the search in a directory.

    Raises:
        JobError: There is none, or this version cannot read it.
    """
    path = directory / SEARCH
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        raise JobError(f"{directory} holds no search: {SEARCH} cannot be read there") from None
    try:
        return SearchSettings.model_validate(values)
    except ValidationError as error:
        raise JobError(f"{path}{mistakes.named(error, values, None)}") from None


def metric_of(request: TrainRequest, metric: str | None, goal: Goal | None) -> tuple[str, Goal]:
    """The metric of a search, and its goal.

    Args:
        request: The job.
        metric, goal: What the user has asked for.

    Raises:
        JobError: The job's task may have any metrics.
    """
    known = {
        "classification": "accuracy",
        "language": "test_loss",
        "masked-language": "test_loss",
        "qlora": "test_loss",
    }
    own = request.evaluation.best
    name = metric or own or known.get(request.task)
    if name is None:
        raise JobError(
            "a search needs a metric: name one that the task's evaluation returns, by --metric or "
            "evaluation.best"
        )
    if goal is None and own == name:
        goal = request.evaluation.goal
    return name, goal or ("min" if name.endswith(("loss", "error", "perplexity")) else "max")
