"""A stop, as a scheduler asks for it, is not kept waiting by an evaluation or by preparations."""

from pathlib import Path

import pytest

from conftest import metrics_of, result_of
from holdfast.checkpoint.store import CheckpointStore
from holdfast.errors import Interrupted
from holdfast.runs.controls import Controls

pytestmark = pytest.mark.slow

TASKS = Path(__file__).with_name("stop_tasks.py")
KEYS = {
    "batch": 8,
    "epochs": 3,
    "workers": 2,
    "checkpoint": {"every_steps": 0},
    "evaluation": {"best": "error", "goal": "min"},
}


@pytest.fixture
def stopped(train, tmp_path):
    """A run that is asked to stop while its function waits for the file `what`."""

    def run(what, **keys):
        (tmp_path / what).touch()
        controls = Controls()

        def watch(_):
            if (tmp_path / f"{what}s").exists():
                controls.request_stop()

        try:
            return train(
                run_dir=tmp_path / "run",
                task=f"{TASKS}:waiting",
                params={"folder": str(tmp_path)},
                controls=controls,
                watch=watch,
                **KEYS | keys,
            )
        finally:
            (tmp_path / what).unlink()

    return run


def evaluations_of(run_dir):
    """Results of all evaluations after epochs, by step."""
    return [
        (line["step"], line["evaluation"]) for line in metrics_of(run_dir) if "loss" not in line
    ]


@pytest.mark.parametrize(("what", "step"), [("measure", 6), ("look", 7)])
def test_a_stop_in_an_evaluation_saves_what_is_committed(
    train, once, stopped, tmp_path, what, step
):
    result = stopped(what)
    assert (result["status"], result["steps"]) == ("stopped", step)
    store = CheckpointStore.of_run(tmp_path / "run")
    assert store.newest().step == step
    resumed = train(
        run_dir=tmp_path / "run",
        resume=True,
        task=f"{TASKS}:waiting",
        params={"folder": str(tmp_path)},
        **KEYS,
    )
    # The evaluation that was left is made up for, so the best one is that of the whole run.
    whole = once(task=f"{TASKS}:whole", **KEYS)
    expected = result_of(whole)
    assert resumed["weights_sha256"] == expected["weights_sha256"]
    assert resumed["best"] == expected["best"]
    assert evaluations_of(tmp_path / "run") == evaluations_of(whole)


def test_a_stop_before_the_first_step_ends_the_run(stopped, tmp_path):
    with pytest.raises(Interrupted, match="stopped before the first step"):
        stopped("prepare")
    assert CheckpointStore.of_run(tmp_path / "run").newest() is None
