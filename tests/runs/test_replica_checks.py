"""Replicas that differ are found, named and undone; wrong gradients are found by verification."""

import os

import pytest
from test_user_state import own

from conftest import SMALL, TASKS, events_of, sampled
from holdfast.api.attended import Attendance
from holdfast.api.train import run_job
from holdfast.errors import JobError, WorkerFailed
from holdfast.faults.fault_injector import FaultInjector
from holdfast.faults.plan import Fault, FaultPlan
from holdfast.job import load
from holdfast.runs.run import LaunchOptions

pytestmark = pytest.mark.slow

UNALTERED = own("altered", workers=1, params={"mark": os.devnull})
"""The job of `altered` where nothing is altered: its mark exists."""


def lost(run_dir):
    return [e for e in events_of(run_dir) if e["event"] == "worker-exited" and e["unexpected"]]


# Gloo adds in an order of its own where there are more than two.
@pytest.mark.parametrize(("workers", "sync"), sampled([(2, "tree"), (3, "tree"), (2, "ddp")], 1))
def test_an_altered_weight_is_found_before_a_checkpoint_and_undone(
    train, reference, tmp_path, workers, sync
):
    params = {"mark": str(tmp_path / "mark")}
    keys = {"workers": workers, "sync": sync}
    broken = train(tmp_path / "run", **own("altered", params=params, **keys))
    whole = reference(**UNALTERED) if sync == "tree" else reference(**UNALTERED | keys)
    assert broken["weights_sha256"] == whole
    (first, *_) = lost(tmp_path / "run")
    assert "model.3.weight" in first["cause"]
    if workers > 2:
        assert first["rank"] == 1
        assert "differs from all other replicas" in first["cause"]
    else:
        assert "one of the two is wrong" in first["cause"]
    generations = [e for e in events_of(tmp_path / "run") if e["event"] == "generation-started"]
    assert (generations[1]["from_checkpoint"], generations[1]["step"]) == (True, 4)


@pytest.mark.parametrize("when", sampled(["before", "after"], 1))
def test_a_bit_that_flips_at_a_checkpoint_is_not_committed(train, tmp_path, when):
    params = {"mark": str(tmp_path / "mark"), "when": when}
    keys = {"checkpoint": {"every_steps": 4}, "params": params}
    whole = train(**own("flipping_at_checkpoint", workers=1, **keys))
    broken = train(tmp_path / "run", **own("flipping_at_checkpoint", workers=2, **keys))
    assert broken["weights_sha256"] == whole["weights_sha256"]
    (first, *_) = lost(tmp_path / "run")
    assert "has a tensor " in first["cause"]
    generations = [e for e in events_of(tmp_path / "run") if e["event"] == "generation-started"]
    newest = 4 if when == "before" else 8
    assert (generations[1]["from_checkpoint"], generations[1]["step"]) == (True, newest)


@pytest.mark.soak
@pytest.mark.parametrize("dies", sampled([0, 1], 0))
@pytest.mark.parametrize("every_steps", sampled([4, 5], 0))
def test_a_death_while_replicas_are_compared_at_a_checkpoint_changes_nothing(
    train, tmp_path, dies, every_steps
):
    params = {"mark": str(tmp_path / "mark"), "when": "before", "dies": dies}
    keys = {"checkpoint": {"every_steps": every_steps}, "params": params}
    whole = train(**own("flipping_at_checkpoint", workers=1, **keys))
    (tmp_path / "mark").unlink(missing_ok=True)
    broken = train(tmp_path / "run", **own("flipping_at_checkpoint", workers=2, **keys))
    assert broken["weights_sha256"] == whole["weights_sha256"]
    assert "killed by SIGKILL" in lost(tmp_path / "run")[0]["cause"]


@pytest.mark.soak
@pytest.mark.parametrize(("workers", "rank"), sampled([(2, 0), (2, 1), (3, 1)], 1))
@pytest.mark.parametrize("policy", sampled(["replace", "shrink"], 0))
def test_what_differs_is_found_though_a_worker_is_lost_before(
    train, reference, tmp_path, workers, rank, policy
):
    """One of two that differ is lost, and the other one gives its state to the replacement."""
    deaths = [(6, rank, str(tmp_path / "death"))]
    params = {"mark": str(tmp_path / "mark"), "deaths": deaths}
    keys = {"workers": workers, "params": params, "on_failure": policy}
    broken = train(tmp_path / "run", **own("altered", **keys))
    assert broken["weights_sha256"] == reference(**UNALTERED)
    assert "killed by SIGKILL" in lost(tmp_path / "run")[0]["cause"]
    assert any("model.3.weight" in each["cause"] for each in lost(tmp_path / "run")[1:])


def test_a_run_refused_for_its_replicas_resumes_to_the_right_weights(train, reference, tmp_path):
    params = {"mark": str(tmp_path / "mark")}
    keys = own("altered", params=params, on_failure="stop")
    with pytest.raises(WorkerFailed, match=r"model\.3\.weight"):
        train(tmp_path / "run", **keys)
    resumed = train(tmp_path / "run", resume=True, **keys)
    assert resumed["weights_sha256"] == reference(**UNALTERED)


@pytest.mark.parametrize("workers", sampled([2, 3], 1))
@pytest.mark.parametrize("seed", sampled([0, 1], 0))
def test_flipped_bits_of_any_kind_are_found_and_repaired(reference, forks, tmp_path, workers, seed):
    keys = {**SMALL, "epochs": 4, "workers": workers, "checkpoint": {"every_steps": 10}}
    job = load.check(keys, where="test")
    plan = FaultPlan(seed=seed, faults=(Fault(kind="corrupt-replica"),))
    injector, run_dir = FaultInjector(plan, job), tmp_path / "run"
    attendance = Attendance(sidecar=injector.running)
    result = run_job(
        job, LaunchOptions(forks=forks), run_dir=run_dir, resume=False, attendance=attendance
    )
    assert not injector.missed
    assert result.weights_sha256 == reference(epochs=4)
    assert lost(run_dir)[0]["cause"].startswith("has a tensor ")


@pytest.mark.soak
@pytest.mark.parametrize("deaths", sampled([[], [4]], 1))
@pytest.mark.parametrize("what", sampled(["target", "mask"], 0))
def test_a_wrong_tensor_is_found_though_it_is_overwritten_soon(train, tmp_path, what, deaths):
    task = f"{TASKS.parent / 'change_tasks.py'}:overwriting"
    whole = train(**own("", task=task, workers=1, params={"what": what, "mark": os.devnull}))
    params = {"what": what, "mark": str(tmp_path / "mark")}
    params["deaths"] = [(step, 0, str(tmp_path / "death")) for step in deaths]
    broken = train(tmp_path / "run", **own("", task=task, params=params))
    assert broken["weights_sha256"] == whole["weights_sha256"]
    cause = {"target": "kept.target.3.weight", "mask": "model.0.weight"}[what]
    assert any(cause in each["cause"] for each in lost(tmp_path / "run"))


@pytest.mark.parametrize("workers", sampled([2, 3], 1))
def test_a_wrong_replica_and_wrong_arithmetic_are_distinguished(
    train, reference, tmp_path, workers
):
    params = {"mark": str(tmp_path / "mark")}
    keys = {"workers": workers, "verify": {"recompute": 1.0}}
    broken = train(tmp_path / "run", **own("altered", params=params, **keys))
    assert broken["weights_sha256"] == reference(**UNALTERED)
    assert "model.3.weight" in lost(tmp_path / "run")[0]["cause"]


@pytest.mark.soak
def test_the_last_good_replica_may_be_lost_by_an_exception(reference, forks, tmp_path):
    job = load.check({**SMALL, "epochs": 6, "workers": 2}, where="test")
    faults = (Fault(kind="corrupt-replica", step=22, rank=1), Fault(kind="raise", step=25, rank=0))
    injector = FaultInjector(FaultPlan(seed=0, faults=faults), job)
    attendance = Attendance(sidecar=injector.running)
    result = run_job(
        job,
        LaunchOptions(forks=forks),
        run_dir=tmp_path / "run",
        resume=False,
        attendance=attendance,
    )
    assert result.weights_sha256 == reference(epochs=6)
    assert any("of the failed rank" in each["cause"] for each in lost(tmp_path / "run"))


@pytest.mark.parametrize("workers", sampled([2, 3], 0))
@pytest.mark.parametrize("phase", sampled([0, 7], 1))
def test_a_worker_that_computes_wrong_bits_is_named(train, tmp_path, workers, phase):
    params = {"rank": 1, "phase": phase}
    keys = {"verify": {"recompute": 0.2}, "workers": workers, "params": params}
    train(tmp_path / "run", **own("wrong_bits", **keys))
    (only,) = lost(tmp_path / "run")
    assert only["rank"] == 1
    assert only["cause"].startswith("computed a wrong gradient for shard")


@pytest.mark.parametrize("workers", sampled([1, 2, 3], 2))
def test_verification_changes_no_result_and_raises_no_false_alarm(
    train, reference, tmp_path, workers
):
    keys = {"workers": workers, "verify": {"recompute": 0.5}, "non_finite": "recompute"}
    deaths = [(5, workers - 1, str(tmp_path / "mark"))]
    checked = train(tmp_path / "run", **own("keeping", params={"deaths": deaths}, **keys))
    assert checked["weights_sha256"] == reference(**own("keeping"))
    assert len(lost(tmp_path / "run")) == 1


@pytest.mark.parametrize("workers", sampled([2, 3], 0))
def test_code_whose_result_depends_on_the_worker_is_named(train, workers):
    with pytest.raises((JobError, WorkerFailed), match="gradient"):
        train(**own("own_chance", verify={"recompute": 0.5}, workers=workers))


def test_shards_that_are_computed_together_cannot_be_verified(train):
    with pytest.raises(JobError, match="recompute compares the bits of shards"):
        train(**own("keeping", sync="ddp", verify={"recompute": 0.1}))
