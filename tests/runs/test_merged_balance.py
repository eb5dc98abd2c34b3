"""Balance where shards form one batch: samples count once, and alike, whatever the plan."""

import json

import pytest

from conftest import TASKS, events_of, metrics_of, sampled
from holdfast.errors import JobError

pytestmark = pytest.mark.slow

HERE = TASKS.parent / "balance_tasks.py"
UNLIKE = {
    "task": f"{HERE}:merged",
    "batch": 30,
    "shards": 10,
    "workers": 2,
    "epochs": 5,
    "params": {"slow": [0.2, 0.8]},
}
RESTLESS = {"balance": f"{HERE}:restless", "batch": 40, "params": {"slow": [0, 0]}}
"""The last batch of an epoch has 10 of 90 samples, so the last worker may have none of it."""
SYNCS = [{"sync": "ddp"}, {"numerics": "fast"}]


def plans(run_dir):
    return [event["shards_per_worker"] for event in events_of(run_dir, "plan-changed")]


def losses(run_dir):
    return {line["step"]: line["loss"] for line in metrics_of(run_dir) if "loss" in line}


def samples(run_dir):
    """The samples of each step, from all workers."""
    found = {}
    for path in run_dir.glob("logs/rank-*.log"):
        for line in path.read_text().splitlines():
            if line.startswith("used "):
                step, numbers = json.loads(line.removeprefix("used "))
                found[step] = sorted([*found.get(step, []), *numbers])
    return found


@pytest.mark.parametrize("sync", SYNCS, ids=str)
def test_a_worker_with_a_slower_backward_pass_gets_fewer_shards(train, once, tmp_path, sync):
    """Its own time counts, not that in which DDP waits for the gradients of others."""
    train(**UNLIKE, **sync, balance="dynamic", run_dir=tmp_path / "run")
    fast, slow = plans(tmp_path / "run")[-1]
    assert fast >= 6 >= slow + 2
    even = once(**UNLIKE, **sync)
    assert losses(tmp_path / "run") == pytest.approx(losses(even), rel=1e-5)


@pytest.mark.parametrize(
    "keys",
    sampled(
        [
            {"sync": "ddp"},
            {"sync": "ddp", "ddp": {"static_graph": True, "gradient_as_bucket_view": True}},
            {"sync": "ddp", "ddp": {"find_unused_parameters": True}, "loader": {"workers": 1}},
            {"sync": "ddp", "precision": "fp16"},
            {"numerics": "fast"},
        ],
        0,
        4,
    ),
    ids=str,
)
def test_each_sample_counts_once_under_a_plan_that_changes_with_every_step(
    train, once, tmp_path, keys
):
    result = train(**UNLIKE | RESTLESS | keys, run_dir=tmp_path / "run")
    assert len(plans(tmp_path / "run")) > 2
    steps = samples(tmp_path / "run")
    assert len(steps) == 15
    for epoch in range(5):
        used = [number for step in range(3) for number in steps[3 * epoch + step]]
        assert sorted(used) == list(range(90))
    rel = 1e-2 if "precision" in keys else 1e-5
    even = once(**UNLIKE | {"sync": "ddp", "batch": 40, "params": {"slow": [0, 0]}})
    assert losses(tmp_path / "run") == pytest.approx(losses(even), rel=rel)
    assert result["exactness"].endswith(f"; balance={HERE}:restless affects the weights")


def test_a_restart_from_a_checkpoint_begins_with_the_plan_for_the_speeds_in_it(
    train, once, tmp_path
):
    dies = UNLIKE["params"] | {"dies": 11, "mark": str(tmp_path / "mark")}
    keys = UNLIKE | {"sync": "ddp", "balance": "dynamic", "checkpoint": {"every_steps": 5}}
    train(**keys | {"params": dies}, run_dir=tmp_path / "run")

    events = events_of(tmp_path / "run")
    _, second = [n for n, each in enumerate(events) if each["event"] == "generation-started"]
    first = next(each for each in events[second:] if each["event"] == "plan-changed")
    assert events[second]["step"] == first["step"] == 10
    fast, slow = first["shards_per_worker"]
    assert fast > slow
    even = once(**UNLIKE, sync="ddp")
    assert losses(tmp_path / "run") == pytest.approx(losses(even), rel=1e-5)


def test_a_death_under_changing_plans_leaves_out_no_sample(train, once, tmp_path):
    params = RESTLESS["params"] | {"dies": 11, "mark": str(tmp_path / "mark")}
    keys = UNLIKE | RESTLESS | {"numerics": "fast", "params": params}
    train(**keys, run_dir=tmp_path / "run")

    assert (tmp_path / "mark").exists()
    even = once(**UNLIKE | {"numerics": "fast", "batch": 40, "params": {"slow": [0, 0]}})
    assert losses(tmp_path / "run") == pytest.approx(losses(even), rel=1e-5)


def test_a_resumed_run_keeps_the_balance_that_shows_in_its_weights(train, tmp_path):
    keys = UNLIKE | {"sync": "ddp", "params": {"slow": [0, 0]}, "epochs": 1}
    train(**keys, run_dir=tmp_path / "run")
    with pytest.raises(JobError, match="balance"):
        train(**keys, balance="dynamic", run_dir=tmp_path / "run", resume=True)
