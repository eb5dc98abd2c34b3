"""`sync: ddp`: PyTorch's own data parallelism inside a run."""

import socket
from pathlib import Path

import ddp_tasks
import pytest

from conftest import (
    FAILING_TASKS,
    TASKS,
    back_to,
    events_of,
    metrics_of,
    printed,
    result_of,
    sampled,
)
from holdfast.errors import JobError, WorkerFailed
from holdfast.runs.controls import Controls

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parent / "scripts" / "plain_ddp.py"
PLAIN = {
    "data": {"name": "digits"},
    "model": {"name": "mlp", "hidden": [16]},
    "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9},
    "schedule": {"name": "constant"},
    "batch": 250,
}
"""A job without chance in a step, so that cutting its batches otherwise changes nothing but the
rounding. The last batch of an epoch has 187 samples, which four workers share unevenly."""


def losses(run_dir):
    return [line["loss"] for line in metrics_of(run_dir) if "loss" in line]


@pytest.mark.parametrize(
    "keys",
    sampled(
        [
            {"workers": 2},
            {"workers": 2, "shards_per_worker": [7, 1]},
            {"workers": 3, "shards_per_worker": [5, 0, 3]},
            {"workers": 4, "clip_norm": 0.3},
        ],
        2,
    ),
    ids=str,
)
def test_uneven_batches_are_weighted_by_their_samples(train, tmp_path, keys):
    train(run_dir=tmp_path / "tree", **PLAIN, **keys)
    train(run_dir=tmp_path / "ddp", sync="ddp", **PLAIN, **keys)
    assert losses(tmp_path / "ddp") == pytest.approx(losses(tmp_path / "tree"), rel=1e-4)


def test_a_worker_without_samples_takes_part(train, tmp_path):
    keys = PLAIN | {"batch": 300, "epochs": 2}  # the last 237 leave the last two of eight empty
    train(run_dir=tmp_path / "tree", workers=4, shards=8, shards_per_worker=[2, 2, 2, 2], **keys)
    train(run_dir=tmp_path / "ddp", workers=4, shards=8, sync="ddp", **keys)
    assert losses(tmp_path / "ddp") == pytest.approx(losses(tmp_path / "tree"), rel=1e-4)


@pytest.mark.soak
def test_batch_statistics_are_the_same_on_all_workers_and_across_resume(train, tmp_path):
    whole = train(sync="ddp", workers=2)
    cut = tmp_path / "cut"
    train(run_dir=cut, sync="ddp", workers=2, checkpoint={"every_steps": 4})
    back_to(cut, 8)  # as if the run had ended before its last steps
    again = train(run_dir=cut, resume=True, sync="ddp", workers=2, checkpoint={"every_steps": 4})
    assert again["weights_sha256"] == whole["weights_sha256"]


@pytest.mark.parametrize(
    ("task", "error", "message"),
    sampled(
        [
            ("dying", WorkerFailed, "rank 1 was killed by SIGKILL"),
            ("raising", WorkerFailed, "rank 1 raised ValueError: the data of step 2 are odd"),
            ("breaking", WorkerFailed, "rank 1 raised RuntimeError: this function has no gradient"),
            ("no_backward", JobError, "every worker must call session.backward for every batch"),
            ("exploding", JobError, "in step 4 is not finite"),
            ("leaving_early", JobError, "workers reached different barriers"),
            ("vector_loss", JobError, r"the loss must be a scalar"),
        ],
        1,
    ),
)
def test_the_worker_at_fault_is_named(train, task, error, message):
    keys = {"task": f"{FAILING_TASKS}:{task}", "batch": 20, "shards": 5, "workers": 2}
    with pytest.raises(error, match=message):
        train(sync="ddp", **keys)


def test_a_worker_that_waits_for_the_gradient_of_another_does_not_hang(train, tmp_path):
    task = f"{Path(__file__).with_name('ddp_tasks.py')}:hanging"
    keys = TASK | {"task": task, "hang_timeout_s": 1.0, "params": {"mark": str(tmp_path / "mark")}}
    train(**keys, run_dir=tmp_path / "run")
    assert [event["rank"] for event in events_of(tmp_path / "run", "worker-hung")] == [1]


def test_a_port_that_the_job_names_is_bound_to_this_host_only(train):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    assert train(sync="ddp", workers=2, port=port, epochs=1)["status"] == "finished"


TASK = {
    "task": f"{FAILING_TASKS.with_name('ddp_tasks.py')}:main",
    "sync": "ddp",
    "workers": 2,
    "shards": 2,
    "batch": 16,
    "clip_norm": ddp_tasks.CLIP_NORM,
}
TOLD = ("limit ", "slot ", "shared ", "weights ")


@pytest.fixture
def trained(train, tmp_path):
    """Train `ddp_tasks`: `trained(key=value of ddp, …) -> what all ranks printed, by name`."""
    count = 0

    def run(uses="always", timeout_s=1800.0, compression="none", **ddp):
        nonlocal count
        count += 1
        run_dir = tmp_path / f"ddp-{count}"
        keys = TASK | {"params": {"uses": uses}, "timeout_s": timeout_s, "compression": compression}
        train(run_dir=run_dir, ddp=ddp, **keys)
        logs = [(run_dir / "logs" / f"rank-{rank}.log").read_text() for rank in (0, 1)]
        first, other = (
            [line for line in log.splitlines() if line.startswith(TOLD)] for log in logs
        )
        assert first == other
        return dict(line.split() for line in first)

    return run


def test_powersgd_and_unused_parameters_give_the_bits_of_plain_ddp(run, trained, tmp_path):
    run(SCRIPT)
    lines = printed(tmp_path).splitlines()
    plain = dict(line.split()[1:] for line in lines if line.startswith("weights "))
    assert len(set(plain.values())) == len(plain), "each changes the weights"
    assert trained()["weights"] == plain["none"]
    low_rank = trained(compression={"method": "powersgd", "rank": 2})
    assert low_rank["weights"] == plain["powersgd"]
    unused = trained(uses="sometimes", find_unused_parameters=True)
    assert unused["weights"] == plain["unused"]
    alone = trained(uses="alone", find_unused_parameters=True, gradient_as_bucket_view=True)
    assert alone["weights"] == plain["alone"]


@pytest.mark.parametrize(
    "keys",
    sampled(
        [
            {"gradient_as_bucket_view": True},
            {"bucket_cap_mb": 0.001},
            {"static_graph": True},
            {"find_unused_parameters": True},
            {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.02, "static_graph": True},
        ],
        4,
    ),
    ids=str,
)
def test_other_keys_of_ddp_change_no_bit(trained, keys):
    found = trained(**keys, timeout_s=77.0)
    assert found["limit"] == "77.0"
    gradient_bytes = 4 * 3 * ddp_tasks.WIDTH * ddp_tasks.WIDTH
    assert int(found["slot"]) < gradient_bytes / 2, "no slot holds a gradient"
    # What waits to be written is the state: weights and momentum, twice.
    assert int(found["shared"]) < 2 * 2 * gradient_bytes * 1.5, "memory for gradients is asked for"
    assert found["weights"] == trained()["weights"]


@pytest.mark.parametrize(
    ("uses", "keys", "message"),
    sampled(
        [
            ("later", {}, "the loss of step 1 does not depend on third.weight.*set ddp.find_un"),
            ("alone", {}, "the loss of step 1 does not depend on third.weight"),
            ("first", {"static_graph": True}, "the loss of step 3 .*and ddp.static_graph=false"),
            ("later", {"static_graph": True}, "one parameter is unused in first iteration"),
        ],
        1,
    ),
)
def test_what_ddp_cannot_do_ends_in_a_sentence(trained, uses, keys, message):
    with pytest.raises((JobError, WorkerFailed), match=message):
        trained(uses=uses, **keys)


@pytest.mark.parametrize(
    "keys", sampled([{"static_graph": True}, {"find_unused_parameters": True}], 1), ids=str
)
def test_a_worker_without_samples_takes_part_where_ddp_follows_the_graph(train, tmp_path, keys):
    jobs = PLAIN | {"epochs": 1, "workers": 3, "shards_per_worker": [5, 0, 3]}
    train(run_dir=tmp_path / "tree", **jobs)
    train(run_dir=tmp_path / "ddp", sync="ddp", ddp=keys, **jobs)
    assert losses(tmp_path / "ddp") == pytest.approx(losses(tmp_path / "tree"), rel=1e-4)


METHODS = [
    ("bf16", 1e-3),
    ("int8", 1e-3),
    ("4bit", 1e-2),
    ({"method": "topk", "share": 0.25}, 0.1),
    ({"method": "topk", "share": 0.25, "error_feedback": False}, 0.5),
    ("powersgd", 0.1),
]
"""Methods of compression, and the most by which they change the loss after 18 steps."""


@pytest.mark.parametrize(("compression", "most"), sampled(METHODS, 1, 3), ids=str)
def test_compressed_gradients_train_alike(train, once, compression, most):
    keys = PLAIN | {"sync": "ddp", "workers": 3, "epochs": 3}
    found = losses(once(**keys, compression=compression))
    plain = losses(once(**keys))
    assert found != plain
    assert found[-1] < found[0]
    assert found[-1] == pytest.approx(plain[-1], rel=most)


def test_steps_before_compression_begins_are_sent_whole(once):
    keys = PLAIN | {"sync": "ddp", "workers": 2, "epochs": 1}
    run_dir = once(**keys, compression={"method": "4bit", "warmup_steps": 3})
    # Nor is the one before the last checkpoint compressed.
    assert [line["step"] for line in metrics_of(run_dir) if "compressed" in line] == [4, 5]
    found = losses(run_dir)
    plain = losses(once(**keys))
    # The loss of a step is that of the weights before it.
    assert found[:4] == plain[:4]
    assert found[4] != plain[4]


@pytest.mark.parametrize(
    ("compression", "keys"),
    sampled(
        [
            (method, keys)
            for method in ("int8", "powersgd")
            for keys in (
                {"bucket_cap_mb": 0.001},
                {"gradient_as_bucket_view": True, "static_graph": True},
                {"find_unused_parameters": True},
            )
        ],
        1,
        3,  # two buckets of PowerSGD would take all threads of gloo
    ),
    ids=str,
)
def test_compression_supports_other_keys_of_ddp(trained, compression, keys):
    found = trained(**keys, compression=compression)
    assert found["weights"] != trained(**keys)["weights"]


def test_a_parameter_that_one_rank_uses_is_compressed(trained):
    trained(uses="alone", find_unused_parameters=True, compression="topk")


def test_a_compressed_run_continues_like_one_that_was_not_interrupted(train, once, tmp_path):
    keys = {"task": f"{TASKS.with_name('faulty_tasks.py')}:main", "batch": 6, "shards": 3}
    keys |= {"sync": "ddp", "workers": 3, "ddp": {"bucket_cap_mb": 0.0002}}
    keys |= {"compression": {"method": "topk", "share": 0.1}, "checkpoint": {"every_steps": 10}}
    untouched = result_of(once(**keys, params={"faults": []}))
    # The others wait for what it would have sent.
    at = "holdfast.worker.step.compression_hook:_Packet.add_up"
    fault = {"at": at, "when": "before", "rank": 1, "step": 25, "how": "kill"}
    keys["params"] = {"faults": [fault | {"mark": str(tmp_path / "mark")}]}
    run_dir = tmp_path / "run"
    restarted = train(run_dir=run_dir, **keys)
    assert [each["step"] for each in events_of(run_dir, "generation-started")] == [0, 20]
    back_to(run_dir, 30)
    resumed = train(run_dir=run_dir, resume=True, **keys)
    assert restarted["weights_sha256"] == untouched["weights_sha256"]
    assert resumed["weights_sha256"] == untouched["weights_sha256"]


@pytest.mark.parametrize("compression", sampled(["topk", "powersgd", "int8"], 0, 1))
def test_what_is_kept_outlives_a_step_that_is_left_out(train, tmp_path, compression):
    keys = TASK | {"compression": compression, "non_finite": "skip", "params": {"infinite": 3}}
    train(run_dir=tmp_path / "run", **keys)
    steps = [line for line in metrics_of(tmp_path / "run") if "loss" in line]
    assert [line["step"] for line in steps if "skipped" in line] == [4]
    assert [line["step"] for line in steps if line["loss"] is not None] == [1, 2, 3, 5, 6]


@pytest.mark.parametrize("compression", sampled(["topk", "powersgd"], 0, 1))
def test_a_compressed_run_can_be_stopped(train, tmp_path, compression):
    controls = Controls()

    def stop(committed):
        controls.stop |= committed >= 10

    keys = {"task": f"{TASKS}:eternal", "batch": 20, "shards": 2, "checkpoint": {"every_steps": 0}}
    keys |= {"sync": "ddp", "workers": 2, "compression": compression}
    result = train(run_dir=tmp_path / "run", controls=controls, watch=stop, **keys)
    assert result["status"] == "stopped"
    saved = [event["step"] for event in events_of(tmp_path / "run", "checkpoint-committed")]
    assert saved == [result["steps"]]


@pytest.mark.parametrize("compression", sampled(["int8", "powersgd"], 0))
def test_a_sparse_gradient_is_not_compressed(train, compression):
    keys = TASK | {"task": TASK["task"].replace(":main", ":sparse"), "compression": compression}
    train(**keys | {"compression": "none"})
    with pytest.raises(JobError, match=f"compression={compression} does not support sparse"):
        train(**keys)
