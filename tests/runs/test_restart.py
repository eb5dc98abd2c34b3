"""`on_failure: restart`: all workers begin anew from the newest good checkpoint."""

import signal

import pytest
from faulty_tasks import marks

from conftest import TASKS, events_of, metrics_of, result_of, sampled
from holdfast.errors import WorkerFailed
from holdfast.rundir import json_lines

pytestmark = pytest.mark.slow

KEYS = {
    "task": f"{TASKS.parent / 'faulty_tasks.py'}:main",
    "batch": 4,
    "shards": 2,
    "workers": 2,
    "checkpoint": {"every_steps": 10, "keep": 3},
    "on_failure": "restart",
}
STEPS = 69
IN_A_STEP = {"at": "holdfast.worker.step.tree:TreeStepper.begin_shard", "when": "before"}
IN_DDP = {"at": "holdfast.worker.step.ddp:DdpStepper.begin_shard", "when": "before"}


@pytest.fixture
def inject(train, once, tmp_path):
    """Run while faults are injected, and compare with an fault-free run; returns its events."""

    def run(*faults, **keys):
        keys = {**KEYS, **keys}
        untouched = result_of(once(**keys, params={"faults": []}))
        named = [{**fault, "mark": str(tmp_path / f"mark-{n}")} for n, fault in enumerate(faults)]
        result = train(run_dir=tmp_path / "run", **keys, params={"faults": named})
        assert all(marks(named))
        assert result["weights_sha256"] == untouched["weights_sha256"]
        steps = [line["step"] for line in metrics_of(tmp_path / "run") if "loss" in line]
        assert steps == list(range(1, STEPS + 1))
        return events_of(tmp_path / "run")

    return run


def begun_from(events):
    return [event["step"] for event in events if event["event"] == "generation-started"]


@pytest.mark.soak
@pytest.mark.parametrize("rank", sampled([0, 1], 1))
def test_a_death_at_35_costs_the_steps_since_the_checkpoint_of_30(inject, rank, tmp_path):
    events = inject({**IN_A_STEP, "rank": rank, "step": 35, "how": "kill"})
    assert begun_from(events) == [0, 30]
    assert sum(event["event"] == "worker-started" for event in events) == 4
    assert [line["step"] for line in metrics_of(tmp_path / "run") if "loaded" in line] == [31]
    before = list(json_lines.read(tmp_path / "run" / "recomputed.jsonl"))
    assert [line["step"] for line in before] == [31, 32, 33, 34, 35]
    again = {line["step"]: line["loss"] for line in metrics_of(tmp_path / "run") if "loss" in line}
    assert all(line["loss"] == again[line["step"]] for line in before)


@pytest.mark.soak
def test_two_failures_cost_two_restarts(inject):
    events = inject(
        {**IN_A_STEP, "rank": 1, "step": 25, "how": "raise"},
        {**IN_A_STEP, "rank": 0, "step": 55, "how": "kill"},
    )
    assert begun_from(events) == [0, 20, 50]


@pytest.mark.soak
def test_a_stopped_worker_is_a_lost_one(inject):
    events = inject({**IN_A_STEP, "rank": 1, "step": 35, "how": "stop"})
    assert begun_from(events) == [0, 30]


@pytest.mark.soak
def test_a_damaged_checkpoint_is_skipped_by_all_workers(inject, tmp_path):
    damage = {
        "at": "holdfast.worker.step.tree:TreeStepper.begin_shard",
        "when": "before",
        "how": "damage",
    }
    path = str(tmp_path / "run" / "checkpoints" / "step-00000030")
    events = inject(
        {**damage, "rank": 1, "step": 34, "path": path},
        {**IN_A_STEP, "rank": 1, "step": 35, "how": "kill"},
    )
    assert len(begun_from(events)) == 2
    # The coordinator is first where it had not yet verified the checkpoint.
    kinds = ("checkpoint-rejected", "checkpoint-corrupt")
    refused = [event["directory"] for event in events if event["event"] in kinds]
    assert {directory.removesuffix(".rejected-1") for directory in refused} == {path}
    saved = [event["step"] for event in events if event["event"] == "checkpoint-committed"]
    assert saved == [10, 20, 30, 30, 40, 50, 60, 69]  # that of 30 is made again on the way from 20


def test_a_failure_while_all_workers_restart_costs_one_more_restart(inject):
    first = {**IN_A_STEP, "rank": 0, "step": 35, "how": "kill"}
    at = "holdfast.worker.membership.attach:AttachedModels.allocate"
    second = {"at": at, "when": "before", "rank": 1, "step": 0, "generation": 2, "how": "kill"}
    assert begun_from(inject(first, second)) == [0, 30, 30]


@pytest.mark.parametrize("on_failure", sampled(["replace", "restart"], 0))
def test_jobs_with_ddp_restart(inject, on_failure):
    events = inject(
        {**IN_DDP, "rank": 1, "step": 25, "how": "kill"},
        {**IN_DDP, "rank": 0, "step": 55, "how": "raise"},
        sync="ddp",
        on_failure=on_failure,
    )
    assert begun_from(events) == [0, 20, 50]


@pytest.mark.soak
def test_a_port_that_the_job_names_is_free_again_at_every_restart(inject, free_port):
    faults = [{**IN_DDP, "rank": 0, "step": step, "how": "kill"} for step in (15, 25, 35, 45)]
    assert begun_from(inject(*faults, sync="ddp", port=free_port)) == [0, 10, 20, 30, 40]


def test_the_error_names_cause_rank_and_checkpoint(train, tmp_path):
    fault = {**IN_A_STEP, "rank": 1, "step": 35, "how": "kill"}
    faults = [{**fault, "mark": str(tmp_path / f"mark-{number}")} for number in range(4)]
    with pytest.raises(WorkerFailed) as caught:
        train(**KEYS, restarts={"limit": 3}, params={"faults": faults})
    log = tmp_path / "run-1" / "logs" / "rank-1.log"
    assert str(caught.value) == (
        f"rank 1 was killed by {signal.SIGKILL.name}; restart budget exhausted: more than 3 "
        f"failures in 600 s; see {log}; resume the run from its last checkpoint, of step 30"
    )


def test_a_failure_after_every_restart_ends_the_run_before_its_budget_is_spent(train, tmp_path):
    fault = {**IN_A_STEP, "rank": 1, "step": 35, "how": "raise"}
    faults = [{**fault, "mark": str(tmp_path / f"mark-{number}")} for number in range(4)]
    words = "rank 1 raised ValueError: as planned; 3 failures without a checkpoint in between"
    with pytest.raises(WorkerFailed, match=words) as caught:
        train(**KEYS, params={"faults": faults})
    assert "ValueError: as planned" in caught.value.__cause__.text
