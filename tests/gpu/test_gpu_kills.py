"""Section 6: recovery gives the same weights: workers killed at points of a step, and drills."""

import json

import pytest
from checked_device import DEVICE, ON_GPU, on_cpu

from conftest import TASKS, events_of, killing, metrics_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ENDED = {"device": DEVICE, "epochs": 4, "checkpoint": {"every_steps": 3}}
FAULTY = {
    "task": f"{TASKS.with_name('faulty_tasks.py')}:main",
    "batch": 20,
    "shards": 5,
    "clip_norm": 0.3,
    "device": DEVICE,
    "checkpoint": {"every_steps": 4},
}
UPDATE = "holdfast.arena.replica:Replica.step_optimizers"
BETWEEN = "holdfast.worker.metrics:Metrics.step"
REDUCED = "holdfast.collectives.exact:TreeReducer.reduced"
SHARES = "holdfast.collectives.device_sums:DeviceSums.add_up"


@pytest.mark.parametrize(
    ("workers", "at", "when"),
    on_cpu(
        [
            (1, UPDATE, "before"),
            (1, UPDATE, "after"),
            (1, BETWEEN, "before"),
            (2, UPDATE, "after"),
            (2, REDUCED, "before"),
            (2, SHARES, "before"),
        ],
        1,
    ),
)
def test_a_worker_that_dies_within_a_step_changes_no_weight(
    train, reference, tmp_path, workers, at, when
):
    mark = tmp_path / "mark"
    fault = {"at": at, "when": when, "rank": workers - 1, "step": 3, "how": "kill"}
    faults = [{**fault, "mark": str(mark)}]
    keys = {**FAULTY, "workers": workers}
    if at == SHARES and not ON_GPU:
        keys["exchange"] = "staged"  # as on GPUs
    result = train(run_dir=tmp_path / "run", params={"faults": faults}, **keys)
    assert mark.exists(), "the worker was not killed"
    whole = reference(**keys, params={"faults": []})
    assert result["weights_sha256"] == whole


@pytest.mark.skipif(not ON_GPU, reason="tests/runs does so on a CPU, except for the time")
def test_an_only_worker_that_dies_outside_an_update_loses_no_step(train, tmp_path, record_property):
    fault = {"at": BETWEEN, "when": "before", "rank": 0, "step": 3, "how": "kill"}
    faults = [{**fault, "mark": str(tmp_path / "mark")}]
    run_dir = tmp_path / "run"
    train(run_dir=run_dir, workers=1, exchange="mapped", params={"faults": faults}, **FAULTY)
    _, second = events_of(run_dir, "generation-started")
    assert (second["from_checkpoint"], second["step"]) == (False, second["last_committed_step"])
    (exited,) = [e for e in events_of(run_dir, "worker-exited") if e["unexpected"]]
    lines = [line for line in metrics_of(run_dir) if line["step"] == second["step"] + 1]
    record_property("next_step_s", lines[0]["time_unix_s"] - exited["time_unix_s"])
    assert lines[0]["time_unix_s"] < exited["time_unix_s"] + 5


@pytest.mark.skipif(not ON_GPU, reason="tests/runs does so on a CPU")
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("policy", ["replace", "restart"])
def test_a_killed_worker_does_not_change_the_weights(train, tmp_path, reference, workers, policy):
    run_dir = tmp_path / "run"
    watch = killing(run_dir, step=5, rank=workers - 1)
    keys = ENDED | {"workers": workers, "on_failure": policy}
    result = train(run_dir=run_dir, watch=watch, **keys)
    assert events_of(run_dir, "worker-exited")
    assert result["weights_sha256"] == reference(**ENDED, workers=1)


@pytest.mark.skipif(not ON_GPU, reason="tests/runs does so on a CPU")
def test_a_worker_out_of_memory_on_its_gpu_computes_fewer_shards(train, tmp_path):
    task = f"{TASKS.parent / 'memory_tasks.py'}:main"
    keys = {"task": task, "batch": 64, "shards": 8, "balance": "dynamic", "device": DEVICE}
    most = {"since": 2, "steps": 8}
    whole = train(workers=1, params={"most": [], **most}, **keys)["weights_sha256"]
    run_dir = tmp_path / "run"
    result = train(workers=2, params={"most": [[1, 2]], **most}, run_dir=run_dir, **keys)
    assert result["weights_sha256"] == whole
    (event,) = events_of(run_dir, "worker-out-of-memory")
    assert (event["rank"], event["cap"]) == (1, 2)


RESNET = [
    "resnet50", "data.size=1024", "model.width=32", "batch=64", "epochs=1", "shards=4",
    "schedule.warmup_steps=2",
]  # fmt: skip
GPT2 = [
    "gpt2", "data={name: synthetic-text, size: 65536, length: 64}", "batch=32", "epochs=1",
    "shards=4", "model.layers=6", "schedule.warmup_steps=2",
]  # fmt: skip


@pytest.mark.skipif(not ON_GPU, reason="these models are too large for a CPU")
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("job", [RESNET, GPT2], ids=["resnet50", "gpt2"])
def test_a_drill_ends_with_the_same_weights(command_line, tmp_path, job, workers):
    words = [*job, f"workers={workers}", "device=cuda", "threads_per_worker=1"]
    options = ["--faults", "kill,stop,nan", "--policies", "replace", "--run", str(tmp_path / "run")]
    status, output, errors = command_line("drill", *words, *options, "--json")
    assert status == 0, errors
    report = json.loads(output)
    assert [trial["passed"] for trial in report["trials"]] == [True] * 3
