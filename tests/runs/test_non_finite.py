"""What becomes of a step whose gradient is not finite: it ends the run, or is left out, or bad data
are told from bad hardware."""

import json

import pytest
from faulty_tasks import marks

from conftest import FAILING_TASKS, TASKS, events_of, metrics_of, result_of, sampled
from holdfast.errors import JobError, NonFiniteError, WorkerFailed
from holdfast.job import load
from holdfast.rundir import json_lines
from holdfast.sinks.loss_curve import draw

pytestmark = pytest.mark.slow

EXPLODING = {"task": f"{FAILING_TASKS}:exploding", "batch": 20, "shards": 5}
"""Its fourth step is not finite."""

FAULTY = {
    "task": f"{TASKS.parent / 'faulty_tasks.py'}:main",
    "batch": 20,
    "shards": 5,
    "checkpoint": {"every_steps": 4},
    "non_finite": "recompute",
}
COLLECT = {"at": "holdfast.worker.step.tree:TreeStepper._collect", "when": "before"}
WIDE = {"width": 20_000}
"""Parameters so long that a worker with one shard need not copy all of its gradient."""
POISON = {**COLLECT, "how": "poison", "rank": 1, "step": 6}


@pytest.fixture
def inject(train, once, tmp_path):
    """Run the faulty task and compare it with an fault-free run: `inject(faults, **keys)`; returns
    what the workers have printed.
    """

    def run(*faults, params=None, **keys):
        keys, params = {**FAULTY, **keys}, params or {}
        same = {**FAULTY, "task": keys["task"], "shards": keys["shards"], "workers": 1}
        whole = result_of(once(**same, params={**params, "faults": []}))
        named = [{**fault, "mark": str(tmp_path / f"mark-{n}")} for n, fault in enumerate(faults)]
        path = tmp_path / "run"
        result = train(run_dir=path, **keys, params={**params, "faults": named})
        assert result["weights_sha256"] == whole["weights_sha256"]
        steps = [line["step"] for line in metrics_of(path) if "loss" in line]
        assert steps == list(range(1, result["steps"] + 1))
        assert marks(named) == [True] * len(named)
        ranks = range(keys["workers"])
        return [(path / "logs" / f"rank-{rank}.log").read_text() for rank in ranks]

    return run


def failed(run_dir):
    """The ranks that have left with an error, in order."""
    exits = [event for event in events_of(run_dir) if event["event"] == "worker-exited"]
    return [event["rank"] for event in exits if event["status"] == 1]


def skipped(run_dir):
    return [line["step"] for line in metrics_of(run_dir) if line.get("skipped")]


@pytest.mark.parametrize("sync", sampled(["tree", "ddp"], 0))
def test_a_run_can_stop_and_be_resumed_without_the_step(train, once, tmp_path, sync):
    keys = {**EXPLODING, "workers": 2, "sync": sync, "checkpoint": {"every_steps": 2}}
    with pytest.raises(NonFiniteError, match=r"the gradient of .*0.weight.* in step 4 is not fin"):
        train(run_dir=tmp_path / "run", **keys)
    again = train(run_dir=tmp_path / "run", resume=True, **keys, non_finite="skip")
    assert (again["steps"], skipped(tmp_path / "run")) == (15, [4])
    keys = {
        **EXPLODING,
        "workers": 2,
        "non_finite": "skip",
        **({} if sync == "tree" else {"sync": sync}),
    }
    assert again["weights_sha256"] == result_of(once(**keys))["weights_sha256"]


def test_a_step_that_is_left_out_changes_nothing_for_any_number_of_workers(once):
    hashes = set()
    for workers in (1, 2, 4):
        path = once(**EXPLODING, workers=workers, non_finite="skip")
        result = result_of(path)
        hashes.add(result["weights_sha256"])
        assert (result["steps"], skipped(path)) == (15, [4])
    assert len(hashes) == 1


def test_the_metrics_of_a_step_that_is_left_out_are_json(once, tmp_path):
    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    path = once(**EXPLODING, workers=2, non_finite="skip") / "metrics.jsonl"
    entries = [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]
    odd = entries[3]
    assert (odd["loss"], odd["norm"], odd["skipped"]) == (None, None, True)
    assert odd["samples"] == 20
    assert odd["logged"]["half"] > 0
    assert entries[4]["loss"] < 2
    assert not any("skipped" in entry for entry in entries if entry is not odd)
    draw(path, tmp_path / "loss.png")
    assert json_lines.columns(entries)["loss"][3] is None


@pytest.mark.soak
def test_every_step_may_be_left_out(train, tmp_path):
    keys = {
        **EXPLODING,
        "task": f"{FAILING_TASKS}:always_exploding",
        "workers": 2,
        "non_finite": "skip",
    }
    result = train(run_dir=tmp_path / "run", **keys)
    assert (result["steps"], result["loss"]) == (5, None)
    assert skipped(tmp_path / "run") == [1, 2, 3, 4, 5]
    draw(tmp_path / "run" / "metrics.jsonl", tmp_path / "loss.png")


@pytest.mark.soak
def test_a_worker_that_dies_in_a_step_that_is_left_out_changes_nothing(train, tmp_path):
    keys = {**FAULTY, "workers": 2, "non_finite": "skip"}
    poison = {**POISON, "mark": str(tmp_path / "first")}
    whole = train(**keys, params={"faults": [poison]})
    poison = {**POISON, "mark": str(tmp_path / "second")}
    kill = {"at": "holdfast.worker.step.tree:commit_step", "when": "before", "rank": 1, "step": 6}
    kill |= {"how": "kill", "mark": str(tmp_path / "kill")}
    broken = train(run_dir=tmp_path / "run", **keys, params={"faults": [poison, kill]})
    assert marks([poison, kill]) == [True, True]
    assert broken["weights_sha256"] == whole["weights_sha256"]
    assert skipped(tmp_path / "run") == [7]


@pytest.mark.parametrize("workers", sampled([1, 2, 3], 1))
def test_bad_data_end_the_run_and_are_named(train, tmp_path, workers):
    keys = {**EXPLODING, "task": f"{FAILING_TASKS}:spoilt", "workers": workers}
    with pytest.raises(NonFiniteError) as caught:
        train(run_dir=tmp_path / "run", **keys, non_finite="recompute")
    assert "the gradient of 0.weight" in str(caught.value)
    assert "in step 3 is not finite; recomputing it gave the same bits" in str(caught.value)
    assert "so the cause is the data or the model, not the hardware" in str(caught.value)
    assert "look at the samples of shard 1," in str(caught.value)


def test_a_sum_that_overflows_although_no_part_does_is_a_fault_of_the_model(train, tmp_path):
    keys = {**EXPLODING, "task": f"{TASKS}:huge", "workers": 3, "non_finite": "recompute"}
    train(run_dir=tmp_path / "run", **keys, params={"factor": 1.0})
    just_too_much = 1.01 * 2**64 / metrics_of(tmp_path / "run")[0]["norm"]
    with pytest.raises(NonFiniteError, match="look at the samples of shards 0, 1, 2, 3 and more"):
        train(**keys, params={"factor": just_too_much})


@pytest.mark.parametrize("value", sampled(["nan", "inf", "1e30"], 2))
@pytest.mark.parametrize("which", sampled([0, 1], 1))
@pytest.mark.parametrize("workers", sampled([2, 3], 1))
def test_a_worker_that_computes_wrongly_is_named_and_replaced(
    inject, tmp_path, workers, which, value
):
    logs = inject({**POISON, "which": which, "value": value}, workers=workers)
    assert failed(tmp_path / "run") == [1]
    said = "HardwareError: computed a wrong gradient in step 7: it is not finite, and another"
    assert [said in log for log in logs] == [rank == 1 for rank in range(workers)]


@pytest.mark.parametrize("rank", sampled([0, 1], 1))
def test_a_worker_with_one_shard_that_computes_wrongly_is_replaced(inject, tmp_path, rank):
    inject({**POISON, "rank": rank}, workers=2, shards=2, params=WIDE)
    assert failed(tmp_path / "run") == [rank]


@pytest.mark.soak
def test_bad_data_and_bad_hardware_are_distinguished_where_a_worker_has_one_shard(train):
    keys = {
        "task": f"{FAILING_TASKS}:spoilt",
        "batch": 20,
        "shards": 2,
        "workers": 2,
        "params": WIDE,
    }
    with pytest.raises(NonFiniteError, match="look at the samples of shard 1,"):
        train(**keys, non_finite="recompute")


@pytest.mark.soak
def test_a_worker_that_is_alone_and_computes_wrongly_is_replaced(inject, tmp_path):
    inject({**POISON, "rank": 0}, workers=1)
    assert failed(tmp_path / "run") == [0]


@pytest.mark.soak
def test_all_who_compute_wrongly_are_replaced(inject, tmp_path):
    inject(POISON, {**POISON, "rank": 0}, workers=3)
    assert set(failed(tmp_path / "run")) == {0, 1}


@pytest.mark.parametrize("on_failure", sampled(["shrink", "restart"], 0))
def test_a_worker_that_computes_wrongly_is_lost_like_any_other(inject, tmp_path, on_failure):
    inject(POISON, workers=3, on_failure=on_failure)
    assert failed(tmp_path / "run") == [1]


def test_a_worker_that_computes_wrongly_ends_a_run_that_replaces_none(train, tmp_path):
    fault = {**POISON, "mark": str(tmp_path / "mark")}
    with pytest.raises(WorkerFailed, match="rank 1 computed a wrong gradient in step 7") as caught:
        train(**FAULTY, workers=2, on_failure="stop", params={"faults": [fault]})
    assert caught.value.rank == 1


@pytest.mark.parametrize(
    ("at", "when", "rank"),
    sampled(
        [
            *(
                ("holdfast.worker.step.tree:TreeStepper._begin_recheck", "before", rank)
                for rank in range(3)
            ),
            *(
                ("holdfast.worker.step.tree:TreeStepper._begin_recheck", "after", rank)
                for rank in range(3)
            ),
            *(
                ("holdfast.worker.step.recheck:Recheck.resolve", "before", rank)
                for rank in range(3)
            ),
            ("holdfast.worker.step.recheck:_have_same_bits", "after", 2),  # the one that compares
        ],
        5,
    ),
)
def test_a_death_in_a_recheck_changes_nothing(inject, at, when, rank):
    inject(POISON, {"at": at, "when": when, "rank": rank, "step": 6, "how": "kill"}, workers=3)


@pytest.mark.parametrize("rank", sampled([0, 1], 1))
def test_a_sum_that_goes_wrong_once_is_done_again(inject, tmp_path, rank):
    barrier = {
        "at": "holdfast.collectives.group:Group.barrier",
        "when": "before",
    }
    inject({**barrier, "how": "wrong sum", "rank": rank, "step": 6}, workers=2)
    assert [event["event"] for event in events_of(tmp_path / "run")].count(
        "generation-started"
    ) == 1


@pytest.mark.soak
def test_a_faulty_worker_leaves_although_the_task_catches_all_errors(train, tmp_path):
    keys = {**FAULTY, "task": FAULTY["task"].replace(":main", ":holding"), "shards": 2}
    named = {**POISON, "mark": str(tmp_path / "mark")}
    whole = train(**keys, workers=2, params={"faults": []})
    broken = train(run_dir=tmp_path / "run", **keys, workers=2, params={"faults": [named]})
    assert broken["weights_sha256"] == whole["weights_sha256"]
    newest = max((tmp_path / "run" / "checkpoints").glob("step-*"))
    assert json.loads((newest / "manifest.json").read_text())["state"]["seen"][-1] == 15


@pytest.mark.soak
def test_a_death_in_a_recomputed_shard_changes_nothing(inject):
    again = {"at": "holdfast.worker.step.recheck:Recheck.examine", "when": "before"}
    inject(POISON, {**again, "rank": 2, "step": 6, "how": "kill"}, workers=3)


@pytest.mark.soak
def test_user_code_may_do_in_a_recheck_what_it_does_otherwise(inject, tmp_path):
    task = FAULTY["task"].replace(":main", ":busy")
    inject(POISON, task=task, workers=5)
    assert failed(tmp_path / "run") == [1]


@pytest.mark.parametrize("keys", [{"sync": "ddp"}, {"numerics": "fast"}])
def test_recompute_is_refused_where_shards_are_computed_together(keys):
    with pytest.raises(JobError, match="non_finite: recompute compares the bits of shards"):
        load.check({"task": "x:y", "non_finite": "recompute", **keys}, where="test")
