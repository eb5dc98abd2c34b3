"""Workers of different speed share a step as it ends soonest, and the weights do not show it."""

import json

import pytest
from faulty_tasks import marks
from test_recovery import A_STEP, FAULTY, assert_each_step_once

from conftest import TASKS, events_of, result_of, sampled
from holdfast.errors import JobError
from holdfast.hardware import profile_file
from holdfast.runs.controls import Controls

pytestmark = pytest.mark.slow

HERE = TASKS.parent / "balance_tasks.py"
UNLIKE = {
    "task": f"{HERE}:main",
    "batch": 24,
    "shards": 12,
    "workers": 2,
    "params": {"slow": {"1": 4}},
}


def plans(run_dir):
    return [event["shards_per_worker"] for event in events_of(run_dir, "plan-changed")]


def profile_of(*devices):
    return profile_file.parse(json.dumps({"hosts": {"*": {"devices": devices}}}), "test")


@pytest.mark.parametrize("balance", sampled(["dynamic", "hybrid"], 1))
def test_a_slower_worker_gets_fewer_shards_and_the_weights_are_the_same(
    train, once, tmp_path, balance
):
    scores = profile_of({"name": "fast", "score": 8}, {"name": "slow", "score": 4})
    even = once(**UNLIKE)
    options = {} if balance == "dynamic" else {"profile": scores}
    balanced = train(**UNLIKE, balance=balance, run_dir=tmp_path / "run", **options)

    assert balanced["weights_sha256"] == result_of(even)["weights_sha256"]
    assert plans(even) == []
    found = plans(tmp_path / "run")
    assert balance == "dynamic" or found[0] == [8, 4], "it begins as proportional"
    fast, slow = found[-1]
    assert fast > slow


def test_a_run_begins_with_equal_shares_if_a_score_is_not_known(train, reference, tmp_path):
    unknown = profile_of({"name": "fast", "score": 8}, {"name": "slow", "score": 0})
    keys = UNLIKE | {"balance": "proportional", "params": {"slow": {"0": 0, "1": 0}}}
    result = train(**keys, run_dir=tmp_path / "run", profile=unknown)
    assert result["weights_sha256"] == reference(**UNLIKE)
    [event] = events_of(tmp_path / "run", "scores-missing")
    assert (event["balance"], event["ranks"]) == ("proportional", [1])
    assert plans(tmp_path / "run") == []


@pytest.mark.soak
def test_a_busy_host_trains_with_a_profile_whose_rounds_do_not_agree(train, reference, tmp_path):
    cpu = {"name": "cpu", "kind": "cpu", "score": 0, "unreliable": {"fp32": 0.0008}}
    keys = UNLIKE | {"balance": "proportional", "run_dir": tmp_path / "run"}
    result = train(**keys, profile=profile_of(cpu))
    assert result["weights_sha256"] == reference(**UNLIKE)
    is_busy = bool(events_of(tmp_path / "run", "host-not-profiled"))
    assert len(events_of(tmp_path / "run", "scores-missing")) == is_busy


@pytest.mark.soak
def test_a_resumed_run_begins_with_the_plan_for_the_speeds_that_were_measured(
    train, reference, tmp_path
):
    path, controls = tmp_path / "run", Controls()
    keys = UNLIKE | {"balance": "dynamic", "run_dir": path}

    def stop_once_planned(_):
        controls.stop = controls.stop or bool(plans(path))

    stopped = train(**keys, controls=controls, watch=stop_once_planned)
    before = plans(path)
    resumed = train(**keys, resume=True)

    first = events_of(path, "plan-changed")[len(before)]
    fast, slow = first["shards_per_worker"]
    assert fast > slow
    assert first["step"] == stopped["steps"] < resumed["steps"]
    assert resumed["weights_sha256"] == reference(**UNLIKE)


@pytest.mark.parametrize("rank", sampled([0, 1], 1))
@pytest.mark.parametrize(("at", "when"), sampled(A_STEP, 4))
def test_a_death_under_changing_plans_changes_nothing(train, reference, tmp_path, at, when, rank):
    fault = {"at": at, "when": when, "rank": rank, "step": 3, "how": "kill"}
    named = [fault | {"mark": str(tmp_path / "mark")}]

    balanced = train(
        run_dir=tmp_path / "run",
        **FAULTY,
        balance=f"{HERE}:restless",
        params={"faults": named},
    )

    assert balanced["weights_sha256"] == reference(**FAULTY, params={"faults": []})
    assert marks(named) == [True]
    assert_each_step_once(tmp_path / "run", balanced["steps"])
    assert len(plans(tmp_path / "run")) > 1


@pytest.mark.parametrize("rank", sampled([0, 2], 0))
def test_plans_follow_a_world_that_shrinks_and_grows(train, reference, tmp_path, rank):
    at = "holdfast.worker.step.tree:TreeStepper._apply"
    fault = {"at": at, "when": "after", "rank": rank, "step": 7, "how": "kill"}
    keys = {**FAULTY, "workers": 3, "on_failure": "shrink", "balance": "dynamic"}
    named = [fault | {"mark": str(tmp_path / "mark")}]

    balanced = train(run_dir=tmp_path / "run", **keys, params={"faults": named})

    assert marks(named) == [True]
    assert balanced["weights_sha256"] == reference(**FAULTY, params={"faults": []})
    assert_each_step_once(tmp_path / "run", balanced["steps"])


def test_a_policy_that_is_not_pure_is_refused_by_name(train):
    with pytest.raises(JobError, match=r"balance=.*impure chose different shards"):
        train(**UNLIKE, balance=f"{HERE}:impure")


def test_a_policy_that_leaves_a_worker_without_shards_is_refused(train):
    with pytest.raises(
        JobError, match=r"returned \[12, 0\]; it must return a list of 2 whole numbers"
    ):
        train(**UNLIKE, balance=f"{HERE}:greedy")


def test_a_policy_that_does_not_exist_is_refused(train):
    with pytest.raises(JobError, match=r"balance=.*nobody: .*has no class or function nobody"):
        train(**UNLIKE, balance=f"{HERE}:nobody")
