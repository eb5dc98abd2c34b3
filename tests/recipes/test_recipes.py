"""Recipes train the same model with one worker, with several, and when one of them is killed."""

import ast
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
from recipe_checks import CHECKS

from conftest import sampled
from holdfast.api.attended import Attendance
from holdfast.api.train import run_job
from holdfast.faults.fault_injector import FaultInjector
from holdfast.faults.plan import planned
from holdfast.job import load
from holdfast.runs.run import LaunchOptions

FOLDER = Path(__file__).parents[2] / "docs" / "recipes"
RECIPES = sorted(each for each in FOLDER.glob("*.py") if "\nJOB = " in each.read_text())
"""Recipes of training jobs; scripts of `holdfast run` have a test of their own."""
OFTEN = {"gan"}
"""Recipes that `make test` runs, too."""
KILL = "kill:step=5,rank=1"
WORKERS = {"export_and_infer": 4}
"""Recipes that are compared with another number of workers than three."""


def job_of(recipe, workers):
    """The recipe's `JOB`, read without importing it: the workers import it."""
    (keys,) = [
        ast.literal_eval(node.value)
        for node in ast.parse(recipe.read_text()).body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "JOB"
    ]
    keys = {"shards": 8, **keys, "task": f"{recipe}:main", "workers": workers}
    return load.check(keys, where=recipe.name)


@pytest.fixture
def trained(forks, tmp_path):
    """Train a recipe: `trained(recipe, workers, fault, on_event) -> result`."""

    def run(recipe, workers, fault=None, on_event=None):
        job = job_of(recipe, workers)
        attendance = Attendance(on_event=on_event)
        if fault:
            plan = planned([fault], file=None, seed=0, num_random=0)
            injector = FaultInjector(plan, job)
            attendance = replace(attendance, sidecar=injector.running)
        result = run_job(
            job,
            LaunchOptions(forks=forks),
            run_dir=tmp_path / f"{workers}",
            resume=False,
            attendance=attendance,
        )
        assert not fault or injector.missed == []
        return result

    return run


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_fits_a_screen_or_two(recipe):
    assert len(recipe.read_text().splitlines()) <= 60


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe",
    sampled(RECIPES, *(at for at, recipe in enumerate(RECIPES) if recipe.stem in OFTEN)),
    ids=lambda path: path.stem,
)
def test_a_kill_does_not_affect_a_recipe(trained, recipe, tmp_path):
    events = []
    workers = WORKERS.get(recipe.stem, 3)
    alone, killed = trained(recipe, 1), trained(recipe, workers, KILL, events.append)
    assert killed.weights_sha256 == alone.weights_sha256
    assert killed.evaluations == alone.evaluations
    if recipe.stem in CHECKS:
        CHECKS[recipe.stem](runpy.run_path(str(recipe)), killed, events, tmp_path / "check")


@pytest.mark.soak
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_workers_do_not_affect_a_recipe(trained, recipe):
    alone, several = trained(recipe, 1), trained(recipe, WORKERS.get(recipe.stem, 3))
    assert several.weights_sha256 == alone.weights_sha256
    assert several.evaluations == alone.evaluations
