"""`holdfast.tune`: search good values for keys of a job; `holdfast tune` makes the same calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.api.train import request_of
from holdfast.core.tuning.rungs import RuleName
from holdfast.core.tuning.search import Goal, Line, SearchState
from holdfast.errors import JobError
from holdfast.job.part import AUTO
from holdfast.job.train_job import TrainRequest
from holdfast.linux.supply import usable_cores
from holdfast.rundir.run_directory import new_run
from holdfast.tuning import outcome, settings
from holdfast.tuning import space as spaces
from holdfast.tuning.fork import may_differ
from holdfast.tuning.outcome import TuneResult
from holdfast.tuning.search import Note, Search
from holdfast.tuning.settings import SearchSettings, StopSettings
from holdfast.tuning.space import Space
from holdfast.tuning.suggest import Sampler, arguments

TRIALS: Final = 20
MAX_TRIALS: Final = 1000
"""Number of trials where a budget ends the search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """Options of a search; None: the default.

    Attributes:
        trials: Number of trials. Default: 20, all points of a grid, or what the budget allows.
        at_once: Number that run at the same time. Default: as many as this host has CPUs for.
        sampler: How values are chosen.
        stop: The rule by which poor trials are stopped. Default: none, or asha if the space is
            derived.
        metric, goal: The metric of an evaluation, and which of its values are better.
        budget_s: Seconds after which no trial continues.
        seed: Seed of the sampler.
        strict: True if the search must not depend on which trials end first.
        population: Number of trials of a population; None: there is none.
        every: Epochs of a generation of a population.
    """

    trials: int | None = None
    at_once: int | None = None
    sampler: Sampler | None = None
    stop: RuleName | None = None
    metric: str | None = None
    goal: Goal | None = None
    budget_s: float | None = None
    seed: int = 0
    strict: bool = False
    population: int | None = None
    every: int = 1


def tune(
    task: str | Callable[..., Any],
    job: Mapping[str, Any] | TrainRequest | None = None,
    *,
    space: Mapping[str, Any] | None = None,
    run_dir: str | Path | None = None,
    resume: bool = False,
    trials: int | None = None,
    at_once: int | None = None,
    sampler: Sampler | None = None,
    stop: RuleName | None = None,
    metric: str | None = None,
    goal: Goal | None = None,
    budget_s: float | None = None,
    seed: int = 0,
    strict: bool = False,
    population: int | None = None,
    every: int = 1,
) -> TuneResult:
    """Search good values for keys of a job: run it with different ones, and keep the best.

    Args:
        task, job: As in :func:`train`.
        space: Ranges by key, such as ``{"optimizer.lr": "1e-4..0.1:log", "batch": [32, 64]}``.
            Default: a space that is derived from the job, which is the first trial as it is.
        run_dir: Directory of the search. Default: a new one in ``runs/``.
        resume: Continue the search in ``run_dir``, with its own settings; only more ``trials``
            or a longer ``budget_s`` may be given. Default: False.
        trials: Number of trials. Default: 20, all points of a grid, or what the budget allows.
        at_once: Number that run at the same time. Default: as many as this host has CPUs for.
        sampler: ``"tpe"`` or ``"gp"`` of Optuna, ``"random"``, ``"grid"`` or ``"qmc"``. Default:
            tpe, or random for a population.
        stop: ``"asha"``, ``"hyperband"`` or ``"median"`` stop poor trials early. Default:
            ``"none"``, or ``"asha"`` with a derived space.
        metric: A metric of the evaluation. Default: ``evaluation.best``, or that of the task.
        goal: ``"max"`` or ``"min"``. Default: min for a loss.
        budget_s: Seconds after which no trial continues. Default: not limited.
        seed: Seed of the sampler.
        strict: Trial n knows the trials up to n - ``at_once`` only, so that the search does not
            depend on which trials end first. Default: False.
        population: Population based training: so many trials train side by side, and after every
            generation the worst quarter is replaced by forks of the best. Default: none.
        every: Epochs of a generation. Default: 1.

    Returns:
        The best trial, all trials, and the directory.

    Raises:
        JobError: The job or the space is not valid.
        Interrupted: A signal ended the search; ``resume=True`` continues it.
        HoldfastError: All trials fail alike.

    Example::

        >>> result = holdfast.tune("digits", {"epochs": 1}, space={"batch": [32, 64]}, trials=2)
        >>> result.best.status
        'finished'
    """
    options = TuneOptions(
        trials=trials,
        at_once=at_once,
        sampler=sampler,
        stop=stop,
        metric=metric,
        goal=goal,
        budget_s=budget_s,
        seed=seed,
        strict=strict,
        population=population,
        every=every,
    )
    if resume:
        if run_dir is None:
            raise JobError("resume=True continues the search in run_dir; name it")
        path = Path(run_dir)
        return run_search(path, resumed(path, options))
    request, code = request_of(task, job)
    if code is not None:
        raise JobError(
            "the task is defined in this program, so the processes of trials cannot import it; put "
            "it into a file of its own and import it from there"
        )
    given = None if space is None else spaces.of_values(space)
    chosen = chosen_settings(request, given, options)
    return run_search(begun(chosen, run_dir), chosen)


def chosen_settings(
    request: TrainRequest, space: Space | None, options: TuneOptions
) -> SearchSettings:
    """The settings of a search, checked.

    Args:
        request: The job.
        space: The keys that vary; None: they are derived from the job.
        options: What the user has asked for.

    Raises:
        JobError: A trial could not be started.
    """
    if request.workers == AUTO:
        raise JobError("workers=auto measures the whole host; for a search, give a number")
    metric, goal = settings.metric_of(request, options.metric, options.goal)
    base = spaces.base_of(request)
    first = None
    stop = options.stop or "none"
    if space is None:
        space = spaces.derived_space(request)
        first = spaces.first_trial(request, space)
        stop = options.stop or "asha"
    space.check(base, request.name)
    if options.population is not None:
        _check_population(request, space, options)
    sampler = options.sampler or ("tpe" if options.population is None else "random")
    count = TRIALS if options.budget_s is None else MAX_TRIALS
    if sampler == "grid":
        count = len(space.grid())
    return SearchSettings(
        job=base,
        space=space.plain(),
        first=first,
        sampler=arguments(sampler, space),
        stop=StopSettings(name=stop),
        metric=metric,
        goal=goal,
        trials=options.population or options.trials or count,
        at_once=options.at_once or _fitting(request),
        strict=options.strict,
        every=None if options.population is None else options.every,
        seed=options.seed,
        budget_s=options.budget_s,
    )


def _check_population(request: TrainRequest, space: Space, options: TuneOptions) -> None:
    """Raises: JobError: The job, the space or another option is not for a population."""
    if options.trials is not None or options.strict or options.stop not in (None, "none"):
        raise JobError("a population takes the place of trials, strict and stop; remove these")
    fixed = [each.key for each in space.dimensions if not may_differ(each.key)]
    if fixed:
        raise JobError(
            f"a population cannot vary {fixed[0]}, with which no fork continues: only optimizer, "
            "schedule, params, clip_norm and model.dropout; take it out of the space"
        )
    if options.every % request.evaluation.every_epochs:
        raise JobError(
            f"every={options.every} must be a multiple of evaluation.every_epochs="
            f"{request.evaluation.every_epochs}, so that each generation ends with an evaluation"
        )
    if request.checkpoint.sign or request.checkpoint.encrypt:
        raise JobError("a population forks checkpoints, which are not signed or encrypted then")


def begun(chosen: SearchSettings, run_dir: str | Path | None) -> Path:
    """The directory of a new search, with its settings.

    Raises:
        JobError: It exists, or cannot be made.
    """
    path = new_run(f"{chosen.name}-tune") if run_dir is None else Path(run_dir)
    try:
        path.mkdir(parents=True)
        chosen.write(path)
    except FileExistsError:
        raise JobError(f"{path} exists; continue it with --resume, or name another one") from None
    except OSError as error:
        raise JobError(f"{path}: {error.strerror}; name another directory") from None
    return path


def resumed(path: Path, options: TuneOptions) -> SearchSettings:
    """The settings of a search that is resumed, with more trials or a longer budget if given.

    Raises:
        JobError: There is no search, or an option would make it another one.
    """
    known = settings.read(path)
    free = ("trials", "budget_s", *([] if known.strict else ["at_once"]))
    asked = asdict(options)
    default = asdict(TuneOptions())
    if any(asked[name] != default[name] for name in asked.keys() - {*free}):
        raise JobError(
            f"a search is resumed as it was begun: of its options only {', '.join(free)} may change"
        )
    more = {name: asked[name] for name in free if asked[name] is not None}
    if more:
        known = known.model_copy(update=more)
        known.write(path)
    return known


def run_search(path: Path, chosen: SearchSettings, note: Note | None = None) -> TuneResult:
    """Run the search in a directory to its end, and write what it has found.

    Raises:
        Interrupted, HoldfastError, JobError: See `Search.run`.
    """
    state = Search(path, chosen, time.monotonic, note or _silent).run()
    return outcome.write(path, chosen, state)


def _silent(_line: Line, _state: SearchState) -> None:
    """Note nothing."""


def _fitting(request: TrainRequest) -> int:
    """How many trials this host has CPUs for."""
    assert request.workers != AUTO
    threads = 1 if request.threads_per_worker == AUTO else request.threads_per_worker
    return max(1, usable_cores() // (request.workers * max(threads, request.resources.cpus)))
