"""Scripts that divide a model over the workers end with the same weights when one is killed."""

import re
from pathlib import Path

import pytest

from conftest import printed

FOLDER = Path(__file__).parents[2] / "docs" / "recipes"
KILLED = """
import os, runpy, signal
from torch.optim.optimizer import register_optimizer_step_post_hook

steps = []

def kill(*_):
    steps.append(1)
    if len(steps) == 8 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)

if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    register_optimizer_step_post_hook(kill)
runpy.run_path({recipe!r}, run_name="__main__")
"""
"""Runs a recipe, whose rank 1 is killed in its eighth step."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param("tensor_parallel", marks=pytest.mark.full), "pipeline_1f1b"]
)
def test_a_kill_does_not_affect_a_model_that_a_script_divides(run, tmp_path, name):
    recipe = FOLDER / f"{name}.py"
    assert len(recipe.read_text().splitlines()) <= 90
    assert run(recipe).restarts == 0
    reference = digest_of(tmp_path)
    (tmp_path / "run").rename(tmp_path / "reference")
    assert run(KILLED.format(recipe=str(recipe))).restarts == 1
    assert digest_of(tmp_path) == reference


def digest_of(tmp_path):
    """What rank 0 has printed at the end of the run."""
    [digest] = re.findall(r"sha256 of the weights (\w{64})", printed(tmp_path))
    return digest
