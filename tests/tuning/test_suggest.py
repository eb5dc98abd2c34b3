"""Suggestions: a function of the seed, the number and the trials that are known."""

import math

import pytest

from conftest import needs_library
from holdfast.core.tuning.search import Ended, Trial
from holdfast.tuning.space import of_values
from holdfast.tuning.suggest import SAMPLERS, arguments, suggest

SPACE = of_values(
    {
        "optimizer.name": ["sgd", "adamw"],
        "optimizer.lr": "1e-5..1:log",
        "optimizer.momentum": {"range": [0.0, 0.9], "when": {"optimizer.name": "sgd"}},
        "batch": "16..64",
    }
)
pytestmark = pytest.mark.slow  # Optuna and torch are imported

LEARNING = ("tpe", "gp")


def known(count, status="finished"):
    """Trials whose value is best at a learning rate of 0.01, with any other values."""
    trials = []
    for number in range(count):
        values = suggest({"name": "random"}, SPACE, 5, number, [], "max")
        value = -abs(math.log10(values["optimizer.lr"]) + 2)
        ended = Ended(trial=number, status=status)
        trials.append(Trial(number=number, values=values, evaluations=[(1, value)], ended=ended))
    return trials


def ask(sampler, number, trials=(), seed=0):
    return suggest(arguments(sampler, SPACE), SPACE, seed, number, trials, "max")


grid_needs_choices = [each for each in SAMPLERS if each != "grid"]


@needs_library("optuna")
@pytest.mark.parametrize("sampler", grid_needs_choices)
def test_a_trial_depends_on_seed_and_number(sampler):
    trials = known(12)
    first = ask(sampler, 12, trials)
    assert ask(sampler, 12, trials) == first
    assert ask(sampler, 13, trials) != first
    assert ask(sampler, 12, trials, seed=1) != first
    assert ("optimizer.momentum" in first) == (first["optimizer.name"] == "sgd")


@pytest.mark.parametrize("sampler", ["random", "qmc"])
def test_what_does_not_learn_depends_on_nothing_else(sampler):
    assert ask(sampler, 3, known(3)) == ask(sampler, 3)


@needs_library("optuna")
@pytest.mark.parametrize("sampler", LEARNING)
def test_what_learns_looks_near_the_best(sampler):
    trials = known(20)
    errors = [
        abs(math.log10(ask(sampler, number, trials)["optimizer.lr"]) + 2)
        for number in range(20, 26)
    ]
    random = [-trial.evaluations[0][1] for trial in trials]
    assert sorted(errors)[3] < sorted(random)[10]


@needs_library("optuna")
def test_stopped_failed_and_foreign_trials_are_known_too():
    trials = [*known(6), *known(3, "stopped"), *known(3, "failed")]
    first = Trial(number=0, values={"optimizer.lr": 3.0}, ended=Ended(trial=0, status="finished"))
    as_it_is = Trial(number=1, values={}, ended=Ended(trial=1, status="finished"))
    assert ask("tpe", 12, [first, as_it_is, *trials])["batch"] in range(16, 65)


def test_a_grid_is_its_points_in_order():
    space = of_values({"batch": [32, 64], "model.dropout": [0.0, 0.1]})
    points = [suggest({"name": "grid"}, space, 0, number, [], "max") for number in range(4)]
    assert points == space.grid()


def test_qmc_spreads_more_evenly_than_random():
    batches = [ask("qmc", number)["batch"] for number in range(7)]
    assert len({(batch - 16) // 7 for batch in batches}) == 7


@needs_library("optuna")
def test_all_arguments_are_named():
    assert arguments("tpe", SPACE) == {
        "name": "tpe",
        "n_startup_trials": 10,
        "n_ei_candidates": 24,
        "multivariate": True,
        "group": True,
        "constant_liar": False,
    }
