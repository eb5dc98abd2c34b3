"""Runs whose gradients are summed by an algorithm that the job names."""

import json
from pathlib import Path

import pytest
from faulty_tasks import marks

from conftest import events_of, metrics_of, own_loopback_address, sampled, wait_until
from holdfast.collectives.algorithms.choice import ALGORITHMS

pytestmark = pytest.mark.slow

TASK = f"{Path(__file__).with_name('faulty_tasks.py')}:main"
KEYS = {"batch": 24, "shards": 6, "workers": 3, "numerics": "fast", "clip_norm": 0.3}
NEAR = "holdfast.collectives.algorithms.shared_links:SharedLinks"
FAR = "holdfast.collectives.algorithms.network_links:NetworkLinks"
SUMS = "holdfast.collectives.algorithms.vector_sums:VectorSums"
FAULTS = [
    (f"{NEAR}.take", "before"),  # its part of a round is missing
    (f"{NEAR}._add", "after"),  # its vector is half added
    (f"{SUMS}.add_up", "after"),  # its part of the root is written
    (f"{SUMS}.begin_generation", "before"),
]


@pytest.mark.full
@pytest.mark.parametrize("collective", ALGORITHMS)
def test_a_run_learns_the_same_but_for_rounding(train, collective):
    tree, other = (train(**KEYS, collective=each) for each in ("tree", collective))
    assert other["loss"] == pytest.approx(tree["loss"], rel=1e-3)
    # Halving pairs workers as the tree does.
    is_same = other["weights_sha256"] == tree["weights_sha256"]
    assert is_same == (collective == "halving")


@pytest.mark.parametrize(("at", "when"), sampled(FAULTS, 1))
def test_a_worker_that_is_killed_in_an_all_reduce_changes_no_weight(train, tmp_path, at, when):
    collective = list(ALGORITHMS)[FAULTS.index((at, when))]
    fault = {"at": at, "when": when, "rank": 1, "step": 3, "how": "kill"}
    if "begin" in at:
        fault["step"] = 0
    named = {**fault, "mark": str(tmp_path / "mark")}
    keys = {**KEYS, "task": TASK, "collective": collective}
    whole, broken = (train(**keys, params={"faults": each}) for each in ([], [named]))
    assert marks([named]) == [True]
    assert broken["weights_sha256"] == whole["weights_sha256"]


@pytest.mark.full
@pytest.mark.parametrize("collective", ["halving", "auto"])
def test_fewer_workers_add_after_one_is_lost(train, tmp_path, collective):
    fault = {"at": f"{SUMS}.begin_generation", "when": "after", "rank": 1, "step": 0, "how": "kill"}
    named = {**fault, "mark": str(tmp_path / "mark")}
    keys = {**KEYS, "task": TASK, "collective": collective, "on_failure": "shrink"}
    result = train(**keys, params={"faults": [named]}, run_dir=tmp_path / "run")
    assert marks([named]) == [True]
    assert result["steps"] == len({line["step"] for line in metrics_of(tmp_path / "run")})
    sizes = [len(event["members"]) for event in events_of(tmp_path / "run", "generation-started")]
    assert sizes[:2] == [3, 2]


@pytest.mark.full
def test_what_is_chosen_and_why_is_an_event(train, tmp_path):
    train(**KEYS, collective="auto", run_dir=tmp_path / "run")
    (chosen,) = events_of(tmp_path / "run", "collective-chosen")
    assert chosen["collective"] == min(chosen["predicted_ms"], key=chosen["predicted_ms"].get)
    assert chosen["predicted_ms"].keys() == {"tree", *ALGORITHMS}
    assert chosen["latency_us"]["near"] > 0


@pytest.mark.full
def test_a_run_on_one_host_says_that_it_compresses_nothing(train, tmp_path):
    compressed = train(**KEYS, compression="int8", run_dir=tmp_path / "run")
    assert compressed["weights_sha256"] == train(**KEYS)["weights_sha256"]
    assert len(events_of(tmp_path / "run", "compression-unused")) == 1


@pytest.fixture
def train_on_hosts(command, tmp_path):
    """Train on two hosts: `train_on_hosts(key=value, …) -> result`."""

    def run(name, *keys):
        address = own_loopback_address()
        where = ["--hosts", 2, "--address", address, "--run", name]
        first = command("coordinator", TASK, "shards=6", "batch=24", *keys, *where)
        token = tmp_path / name / "secrets" / "join.token"
        wait_until(token.exists)
        join = ["agent", "--join", f"{address}:50051", "--token-file", token]
        second = command(*join, "--run", f"{name}-2")
        assert first.wait(120) == 0, (tmp_path / "output-0").read_text()
        assert second.wait(60) == 0
        return json.loads((tmp_path / name / "result.json").read_text())

    return run


@pytest.mark.full
@pytest.mark.parametrize("collective", [*ALGORITHMS, "auto"])
def test_a_worker_that_is_killed_between_hosts_changes_no_weight(
    train_on_hosts, tmp_path, collective
):
    fault = {"at": f"{FAR}.exchange", "when": "before", "rank": 1, "step": 3, "how": "kill"}
    if collective == "auto":
        fault["at"] = f"{SUMS}.begin_generation"
        fault["step"] = 0
    named = {**fault, "mark": str(tmp_path / "mark")}
    keys = ["workers=3", "numerics=fast", f"collective={collective}"]
    whole, broken = (
        train_on_hosts(name, *keys, f"params={json.dumps({'faults': faults})}")
        for name, faults in {"whole": [], "broken": [named]}.items()
    )
    assert marks([named]) == [True]
    assert broken["steps"] == whole["steps"]
    chosen = events_of(tmp_path / "broken", "collective-chosen")
    if collective == "auto":  # in each generation, by what is measured then
        assert all(each["latency_us"]["far"] > 0 for each in chosen)
    else:
        assert broken["weights_sha256"] == whole["weights_sha256"]
