"""The space that is derived from a job for which none is given."""

import json

import pytest

from holdfast import tune
from holdfast.errors import JobError
from holdfast.job import load
from holdfast.tuning.space import base_of, derived_space, first_trial


@pytest.mark.parametrize("job", load.builtin_names())
def test_every_built_in_job_has_a_space_that_it_takes(job):
    request = load.load(job)
    if ":" in request.task:
        pytest.skip("its keys are its own")
    space = derived_space(request)
    space.check(base_of(request), job)
    assert {"optimizer.lr", "batch"} <= space.plain().keys()


def test_the_space_of_digits():
    request = load.load("digits")
    space = derived_space(request)
    assert space.plain() == {
        "optimizer.lr": {"log": [1e-5, 0.1]},
        "optimizer.weight_decay": {"log": [1e-5, 0.1]},
        "schedule.warmup_steps": {"choice": [0, 20, 40]},
        "batch": {"choice": [32, 64, 128]},
        "model.width": {"choice": [8, 16, 32]},
        "model.dropout": {"range": [0.0, 0.3]},
    }
    assert first_trial(request, space)["optimizer.lr"] == 0.004


def test_a_job_outside_of_its_space_is_the_first_trial_too():
    request = load.load("digits", ["optimizer={name: sgd, lr: 1e-6}", "batch=1"])
    space = derived_space(request).plain()
    assert space["optimizer.lr"] == {"log": [1e-3, 1.0]}
    assert space["batch"] == {"choice": [1, 2]}  # not half
    assert first_trial(request, derived_space(request)) == {}


def test_the_keys_of_a_task_of_ones_own_are_not_known():
    request = load.load("tests/runs/sample_tasks.py:train")
    with pytest.raises(JobError, match=r"no space can be derived .* --space params\.width=32,64"):
        derived_space(request)


@pytest.mark.slow
def test_a_budget_ends_a_search_without_a_space(tmp_path):
    result = tune(
        "digits", {"epochs": 500, "workers": 1}, at_once=1, budget_s=0.5, run_dir=tmp_path / "s"
    )
    assert [each.status for each in result.trials] == ["stopped"]
    assert result.trials[0].reason == "the budget is spent"
    settings = (tmp_path / "s" / "search.yaml").read_text()
    assert "name: asha" in settings
    lines = (tmp_path / "s" / "trials.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["event"] == "ended"


@pytest.mark.soak
def test_twenty_trials_find_what_the_built_in_job_has(tmp_path):
    """Whose accuracy is 0.986."""
    result = tune("digits", {"optimizer.lr": 1e-6, "workers": 1}, trials=20, run_dir=tmp_path / "s")
    assert result.best.value >= 0.986
    assert sum(each.status == "stopped" for each in result.trials) >= 10
