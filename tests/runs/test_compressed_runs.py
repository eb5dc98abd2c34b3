"""Runs whose gradients are compressed between hosts."""

import json
import signal
from pathlib import Path

import pytest
from faulty_tasks import marks

from conftest import events_of, metrics_of, own_loopback_address, sampled, wait_until

pytestmark = pytest.mark.slow

TASK = f"{Path(__file__).with_name('faulty_tasks.py')}:main"
LINKS = "holdfast.collectives.algorithms.compressed_links:CompressedLinks"
FEEDBACK = "holdfast.collectives.compression.feedback:ErrorFeedback"
SUMS = "holdfast.collectives.algorithms.vector_sums:VectorSums"
STEPS_PER_EPOCH = 4


@pytest.fixture
def begin_on_hosts(command, tmp_path):
    """Begin a run on hosts of two workers and one: `begin_on_hosts(name, "key=value", …)`."""

    def begin(name, *keys, faults=(), width=16, resume=False):
        address = own_loopback_address()
        params = json.dumps({"faults": list(faults), "width": width})
        keys = ["shards=6", "batch=24", "workers=3", "numerics=fast", f"params={params}", *keys]
        where = ["--hosts", 2, "--address", address, "--run", name]
        token = tmp_path / name / "secrets" / "join.token"
        token.unlink(missing_ok=True)
        first = command("coordinator", TASK, *keys, *where, *(["--resume"] if resume else []))
        wait_until(token.exists)
        join = ["agent", "--join", f"{address}:50051", "--token-file", token]
        return first, command(*join, "--run", f"{name}-2")

    return begin


@pytest.fixture
def train_on_hosts(begin_on_hosts, tmp_path):
    """As `begin_on_hosts`, and gives the result."""

    def run(name, *keys, **options):
        first, second = begin_on_hosts(name, *keys, **options)
        assert first.wait(120) == 0, (tmp_path / "output-0").read_text()
        assert second.wait(60) == 0
        return json.loads((tmp_path / name / "result.json").read_text())

    return run


@pytest.mark.full
@pytest.mark.parametrize(
    ("method", "keys"), [("bf16", ""), ("int8", ""), ("4bit", ""), ("powersgd", ", rank: 1")]
)
def test_a_run_learns_nearly_the_same(train_on_hosts, tmp_path, method, keys):
    plain = train_on_hosts("plain", "collective=hierarchical")
    found = train_on_hosts(method, f"compression={{method: {method}{keys}}}")
    assert found["loss"] == pytest.approx(plain["loss"], abs=0.02)
    assert found["weights_sha256"] != plain["weights_sha256"]
    (chosen,) = events_of(tmp_path / method, "collective-chosen")
    assert chosen["collective"] == method
    assert chosen["ratio"] > 1.2
    assert chosen["predicted_ms"].keys() == {method, "none"}


FAULTS = [
    (f"{LINKS}._encode", "after"),  # part of a message is encoded
    (f"{FEEDBACK}.end", "before"),  # its error is not noted
    (f"{FEEDBACK}.end", "after"),
    (f"{SUMS}.add_up", "after"),  # it has the sum
    (f"{SUMS}.begin_generation", "before"),
]


@pytest.mark.parametrize(("at", "when"), sampled(FAULTS, 2))
def test_a_worker_that_is_killed_changes_no_weight(train_on_hosts, tmp_path, at, when):
    fault = {"at": at, "when": when, "rank": 1, "step": 5, "how": "kill"}
    if "begin" in at:
        fault["step"] = 0
    if "encode" in at:
        fault["rank"] = 0  # the other host has no second worker to send to
    named = {**fault, "mark": str(tmp_path / "mark")}
    keys = ["compression={method: topk, share: 0.1}"]
    whole = train_on_hosts("whole", *keys)
    broken = train_on_hosts("broken", *keys, faults=[named])
    assert marks([named]) == [True]
    assert broken["weights_sha256"] == whole["weights_sha256"]


KEYS = [
    "compression={method: topk, share: 0.1}",
    f"checkpoint.every_steps={STEPS_PER_EPOCH}",
    "checkpoint.busy=wait",
]


@pytest.mark.full
def test_a_resumed_run_ends_like_one_that_was_not_interrupted(train_on_hosts):
    whole = train_on_hosts("whole", *KEYS)
    train_on_hosts("parts", *KEYS, "stop_after_epochs=1")
    resumed = train_on_hosts("parts", *KEYS, resume=True)
    assert resumed["steps"] == whole["steps"]
    assert resumed["weights_sha256"] == whole["weights_sha256"]


@pytest.mark.full
def test_a_checkpoint_waits_for_the_step_after_one_that_was_skipped(train_on_hosts, tmp_path):
    poison = {"at": "holdfast.worker.step.tree:TreeStepper._collect", "when": "before", "rank": 0}
    faults = [{**poison, "step": STEPS_PER_EPOCH - 1, "how": "poison"}]
    train_on_hosts("run", *KEYS, "non_finite=skip", faults=faults)
    lines = [line for line in metrics_of(tmp_path / "run") if "samples" in line]
    assert [line["step"] for line in lines if line.get("skipped")] == [4]
    assert [line["step"] for line in lines if not line.get("compressed")] == [4, 5, 8, 12]


@pytest.mark.full
def test_a_run_that_is_asked_to_stop_sends_all_before_its_checkpoint(begin_on_hosts, tmp_path):
    nap = {"at": f"{SUMS}.add_up", "when": "before", "rank": 0, "step": 1, "how": "nap"}
    faults = [{**nap, "mark": str(tmp_path / "mark")}]
    first, second = begin_on_hosts("run", "compression=topk", faults=faults)
    wait_until((tmp_path / "run" / "metrics.jsonl").exists)
    wait_until(lambda: metrics_of(tmp_path / "run"))
    first.send_signal(signal.SIGTERM)
    first.wait(120)
    second.wait(60)
    lines = metrics_of(tmp_path / "run")
    assert 0 < len(lines) < 12
    assert [line["step"] for line in lines if line.get("compressed")] == [*range(1, len(lines))]
