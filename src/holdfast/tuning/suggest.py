"""Suggest: the values of a trial, a function of the seed, its number and the trials before it.

No state of a sampler is kept: Optuna gets a new study, in memory, with the trials that are known.
So a search that was killed suggests the same as one that was not.

    random, qmc, grid   of the seed and the number alone
    tpe, gp             of the values of the trials that are known, too; these are Optuna's
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from holdfast.core.tuning.search import Goal, Trial
from holdfast.errors import JobError
from holdfast.tuning.space import Choice, Dimension, Space

if TYPE_CHECKING:
    import optuna

Sampler = Literal["tpe", "gp", "random", "grid", "qmc"]
SAMPLERS: Final[tuple[Sampler, ...]] = get_args(Sampler)


def arguments(sampler: Sampler, space: Space) -> dict[str, Any]:
    """A sampler with all of its arguments, so that no release of Optuna changes a search.

    Raises:
        JobError: The library is not installed.
    """
    if sampler not in ("tpe", "gp"):
        return {"name": sampler}
    try:
        import optuna  # noqa: F401  # whether it is installed
    except ImportError:
        raise JobError(
            f"--sampler {sampler} needs Optuna: pip install 'holdfast[tune]', or use --sampler "
            "random"
        ) from None
    if sampler == "gp":
        return {"name": "gp", "n_startup_trials": 10, "deterministic_objective": False}
    return {
        "name": "tpe",
        "n_startup_trials": 10,
        "n_ei_candidates": 24,
        "multivariate": True,
        "group": any(each.when for each in space.dimensions),
        "constant_liar": False,
    }


def suggest(
    sampler: dict[str, Any],
    space: Space,
    seed: int,
    number: int,
    known: Sequence[Trial],
    goal: Goal,
) -> dict[str, Any]:
    """The values of a trial.

    Args:
        sampler: The sampler with its arguments; see `arguments`.
        space: The keys.
        seed: Seed of the search.
        number: The trial's number.
        known: Trials that have ended.
        goal: Whether a higher or a lower value is better.
    """
    match sampler["name"]:
        case "random":
            draw = random.Random(f"{seed} {number}")
            return space.choose(lambda each: each.at(draw.random()))
        case "grid":
            points = space.grid()
            return points[number % len(points)]
        case "qmc":
            shares = _point(len(space.dimensions), seed, number)
            by_key = dict(zip((each.key for each in space.dimensions), shares, strict=True))
            return space.choose(lambda each: each.at(by_key[each.key]))
    return _optuna(sampler, space, seed, number, known, goal)


def perturb(space: Space, seed: int, number: int, values: dict[str, Any]) -> dict[str, Any]:
    """The values of a fork: those of its donor, numbers times 0.8 or 1.2, and the next or the
    previous choice; within the space.

    Args:
        space, seed, number: See `suggest`.
        values: The donor's.
    """
    draw = random.Random(f"{seed} {number}")

    def moved(dimension: Dimension) -> Any:
        value = values[dimension.key]
        up = draw.random() < 0.5
        if isinstance(dimension, Choice):
            index = dimension.options.index(value) + (1 if up else -1)
            return dimension.options[min(max(index, 0), len(dimension.options) - 1)]
        factor = 1.2 if up else 0.8
        number = min(max(value * factor, dimension.low), dimension.high)
        return round(number) if dimension.is_integer else number

    return space.choose(moved)


def _point(size: int, seed: int, number: int) -> list[float]:
    """A point of a scrambled Halton sequence."""
    from scipy.stats import qmc

    points = qmc.Halton(d=size, scramble=True, rng=seed)
    points.fast_forward(number)
    return [float(share) for share in points.random(1)[0]]


def _optuna(
    sampler: dict[str, Any],
    space: Space,
    seed: int,
    number: int,
    known: Sequence[Trial],
    goal: Goal,
) -> dict[str, Any]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    given = {name: value for name, value in sampler.items() if name != "name"}
    of_trial = int.from_bytes(sha256(f"{seed} {number}".encode()).digest()[:4], "big")
    kinds = {"tpe": optuna.samplers.TPESampler, "gp": optuna.samplers.GPSampler}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study = optuna.create_study(
            sampler=kinds[sampler["name"]](seed=of_trial, **given),
            direction="maximize" if goal == "max" else "minimize",
        )
    study.add_trials([_frozen(each, space, goal) for each in known if _fits(each, space)])
    asked = study.ask()
    return space.choose(lambda each: _ask(asked, each))


def _ask(trial: optuna.Trial, dimension: Dimension) -> Any:
    if isinstance(dimension, Choice):
        index = trial.suggest_categorical(dimension.key, range(len(dimension.options)))
        return dimension.options[index]
    if dimension.is_integer:
        low, high = int(dimension.low), int(dimension.high)
        return trial.suggest_int(dimension.key, low, high, log=dimension.log)
    return trial.suggest_float(dimension.key, dimension.low, dimension.high, log=dimension.log)


def _frozen(trial: Trial, space: Space, goal: Goal) -> optuna.trial.FrozenTrial:
    """A trial as Optuna has it: choices by number, because they may be lists."""
    import optuna
    from optuna.trial import TrialState

    of = {each.key: each for each in space.dimensions if each.key in trial.values}
    params = {}
    for key, value in trial.values.items():
        dimension = of[key]
        params[key] = dimension.options.index(value) if isinstance(dimension, Choice) else value
    value = trial.value(goal)
    status = trial.ended.status if trial.ended else "failed"
    states = {"finished": TrialState.COMPLETE, "stopped": TrialState.PRUNED}
    state = states.get(status, TrialState.FAIL) if value is not None else TrialState.FAIL
    finite = {epoch: each for epoch, each in trial.evaluations if each is not None}
    return optuna.trial.create_trial(
        state=state,
        value=value if state is TrialState.COMPLETE else None,
        params=params,
        distributions={key: _distribution(each) for key, each in of.items()},
        intermediate_values=finite,
    )


def _distribution(dimension: Dimension) -> optuna.distributions.BaseDistribution:
    from optuna import distributions

    if isinstance(dimension, Choice):
        return distributions.CategoricalDistribution(range(len(dimension.options)))
    if dimension.is_integer:
        low, high = int(dimension.low), int(dimension.high)
        return distributions.IntDistribution(low, high, log=dimension.log)
    return distributions.FloatDistribution(dimension.low, dimension.high, log=dimension.log)


def _fits(trial: Trial, space: Space) -> bool:
    """True if the values of a trial are in the space, as the first one's need not be."""
    by_key = {each.key: each for each in space.dimensions}
    return bool(trial.values) and all(
        key in by_key and by_key[key].holds(value) for key, value in trial.values.items()
    )
