"""Runs whose gradients stay on the device of a lone worker: the weights of any other run."""

from pathlib import Path

import pytest
from device_tasks import BAD_STEP

from conftest import events_of
from holdfast.errors import JobError, NonFiniteError
from holdfast.rundir import json_lines

pytestmark = pytest.mark.slow

JOB = {
    "task": f"{Path(__file__).with_name('device_tasks.py')}:main",
    "batch": 24,
    "shards": 3,
    "workers": 1,
    "epochs": 1,
    "clip_norm": 0.3,
    "device": "cpu",
    "checkpoint": {"every_steps": 2},
}


def lines_of(run_dir):
    """What the metrics say of each step, apart from times."""
    keys = ("step", "loss", "norm", "lr", "samples", "logged", "skipped")
    lines = json_lines.read(run_dir / "metrics.jsonl")
    return [{key: line.get(key) for key in keys} for line in lines if "loss" in line]


def test_a_built_in_task_gets_the_same_weights_and_metrics(train, tmp_path):
    found = [
        train(run_dir=tmp_path / each, workers=1, shards=3, device="cpu", exchange=each)
        for each in ("alone", "arena")
    ]
    assert found[0]["weights_sha256"] == found[1]["weights_sha256"]
    assert lines_of(tmp_path / "alone") == lines_of(tmp_path / "arena") != []


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("reads_loss", [False, True])
def test_a_bad_step_that_is_known_later_is_skipped(train, tmp_path, reads_loss, workers):
    keys = {**JOB, "workers": workers, "non_finite": "skip", "params": {"reads_loss": reads_loss}}
    found = [
        train(run_dir=tmp_path / each, exchange=each, **keys)["weights_sha256"]
        for each in ("mapped", "arena")
    ]
    assert found[0] == found[1]
    assert lines_of(tmp_path / "mapped") == lines_of(tmp_path / "arena")
    assert [line["skipped"] for line in lines_of(tmp_path / "mapped")].index(True) == BAD_STEP


def test_a_run_stops_at_a_bad_step_before_anything_builds_on_it(train, tmp_path):
    run_dir = tmp_path / "run"
    with pytest.raises(NonFiniteError, match=rf"in step {BAD_STEP + 1} is not finite"):
        train(run_dir=run_dir, exchange="mapped", **JOB)
    assert [line["step"] for line in lines_of(run_dir)] == list(range(1, BAD_STEP + 1))
    names = sorted(each.name for each in (run_dir / "checkpoints").glob("step-*"))
    assert names[-1].endswith(f"{BAD_STEP}")


@pytest.mark.parametrize("dies_at", [3, BAD_STEP + 1])
def test_what_a_step_comes_to_outlives_a_worker_that_does_not_know_it(train, tmp_path, dies_at):
    mark = tmp_path / "mark"
    keys = {**JOB, "non_finite": "skip", "checkpoint": {"every_steps": 100}}
    found = [
        train(run_dir=tmp_path / each, exchange=each, params=params, **keys)["weights_sha256"]
        for each, params in {
            "mapped": {"dies_at": dies_at, "mark": str(mark)},
            "arena": {},
        }.items()
    ]
    assert mark.exists()
    assert found[0] == found[1]
    assert lines_of(tmp_path / "mapped") == lines_of(tmp_path / "arena")
    _, second = events_of(tmp_path / "mapped", "generation-started")
    assert (second["from_checkpoint"], second["step"]) == (False, dies_at)


def test_a_replacement_stops_at_a_bad_step_that_no_worker_knew(train, tmp_path):
    params = {"dies_at": BAD_STEP + 1, "mark": str(tmp_path / "mark")}
    # A worker that writes a checkpoint waits for the outcome of a step.
    keys = JOB | {"params": params, "checkpoint": {"every_steps": 0}, "exchange": "mapped"}
    with pytest.raises(NonFiniteError, match=rf"gradient in step {BAD_STEP + 1} is not finite"):
        train(run_dir=tmp_path / "run", **keys)
    assert events_of(tmp_path / "run", "generation-started")[-1]["step"] == BAD_STEP + 1


REASONS = {
    "open": "the memory of rank 0 cannot be mapped: no peer access",
    "read": "what is read from rank 0 differs from what it has written",
}


@pytest.mark.parametrize("how", REASONS)
def test_workers_that_cannot_map_each_other_copy_through_the_hosts_memory(train, tmp_path, how):
    broken = {"cannot_map": 1, "how": how, "acts_as_gpu": True}
    keys = {**JOB, "workers": 2, "non_finite": "skip"}
    found = train(run_dir=tmp_path / "run", params=broken, **keys)["weights_sha256"]
    assert found == train(exchange="arena", params={}, **keys)["weights_sha256"]
    (event,) = events_of(tmp_path / "run", "memory-not-mapped")
    assert (event["rank"], event["reason"]) == (1, REASONS[how])


@pytest.mark.parametrize("how", REASONS)
def test_a_job_that_must_map_memory_ends_where_that_is_not_possible(train, how):
    broken = {"cannot_map": 1, "how": how}
    said = f"exchange=mapped does not work here: {REASONS[how]}; set exchange=staged"
    with pytest.raises(JobError, match=f"{said}|rank 1 cannot map or read"):
        train(exchange="mapped", params=broken, **{**JOB, "workers": 2})


def test_a_replacement_without_device_memory_continues_from_a_checkpoint(train, tmp_path):
    mark = str(tmp_path / "mark")
    params = {"dies_at": 3, "mark": mark, "fills_device": True, "acts_as_gpu": True}
    keys = {**JOB, "non_finite": "skip"}
    found = train(run_dir=tmp_path / "run", params=params, **keys)["weights_sha256"]
    assert found == train(exchange="arena", params={}, **keys)["weights_sha256"]
    assert events_of(tmp_path / "run", "generation-started")[-1]["from_checkpoint"]
    (event,) = events_of(tmp_path / "run", "memory-not-mapped")
    assert event["reason"] == "out of memory"
