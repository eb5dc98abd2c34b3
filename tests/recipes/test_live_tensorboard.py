"""The TensorBoard recipe: its event file holds each step once, even if a worker is killed."""

import runpy
from functools import partial

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_recipes import RECIPES, job_of

from holdfast.engines.run import LaunchOptions
from holdfast.engines.train import run_job
from holdfast.faults.fault_injector import FaultInjector
from holdfast.faults.plan import planned

(RECIPE,) = [path for path in RECIPES if path.stem == "live_tensorboard"]


@pytest.mark.slow
def test_the_board_shows_each_step_once(forks, tmp_path):
    recipe, job = runpy.run_path(str(RECIPE)), job_of(RECIPE, 2)
    injector = FaultInjector(planned(["kill:step=20,rank=0"], file=None, seed=0, num_random=0), job)
    with recipe["SummaryWriter"](str(tmp_path / "board")) as board:
        options = LaunchOptions(
            forks=forks, sidecar=injector.running, on_event=partial(recipe["write"], board)
        )
        result = run_job(job, options, run_dir=tmp_path / "run", resume=False)
    shown = EventAccumulator(str(tmp_path / "board")).Reload()
    losses, history = shown.Scalars("step/loss"), result.history
    assert [loss.step for loss in losses] == history["step"] == list(range(1, 46))
    assert [loss.value for loss in losses] == pytest.approx(history["loss"])
    assert len(shown.Scalars("step/confidence")) == 45
    assert [each.step for each in shown.Scalars("evaluation/accuracy")] == [15, 30, 45]
    assert shown.Tensors("recovery/text_summary")[0].step >= 19
