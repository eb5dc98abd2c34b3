"""Each kind of fault leaves a report that names the culprit and nobody else, and what it cost."""

import contextlib
import json
import os
import re
import signal

import pytest

from conftest import FAILING_TASKS, TASKS, events_of, sampled
from holdfast.errors import HoldfastError
from holdfast.record import recovery_reports
from holdfast.record.sink import Sink
from holdfast.runs.controls import Controls
from holdfast.sinks.run_files import RunFiles

pytestmark = pytest.mark.slow

FAULTY = {
    "task": f"{TASKS.parent / 'faulty_tasks.py'}:main",
    "batch": 20,
    "shards": 5,
    "workers": 4,
    "hang_timeout_s": 1.0,
    "checkpoint": {"every_steps": 4},
}
A_SHARD = "holdfast.worker.step.tree:TreeStepper.begin_shard"
OTHERS = [0, 2, 3]


@pytest.fixture
def reports(train, tmp_path):
    """Run a job, whatever comes of it; returns its reports, and what was said of them. With `kill`
    that is called with the newest step, and the run is stopped when its first report is there.
    """

    def run(kill=None, **keys):
        path, said, controls = tmp_path / "run", [], Controls()

        class Said(Sink):
            def on_recovery(self, report):
                said.append(recovery_reports.text(report, path / "logs"))
                controls.stop = kill is not None

        with contextlib.suppress(HoldfastError):
            train(
                run_dir=path,
                controls=controls,
                watch=kill,
                sinks=[Said(), RunFiles(path)],
                **{**FAULTY, **keys},
            )
        kept = path / "recoveries.jsonl"
        lines = kept.read_text().splitlines() if kept.exists() else []
        return [json.loads(line) for line in lines], said

    return run


@pytest.fixture
def faulted(reports, tmp_path):
    """The one report of a run with these faults in its workers."""

    def run(*faults, **keys):
        named = [
            {"at": A_SHARD, "when": "before", "rank": 1, "step": 6, **fault}
            | ({"mark": str(tmp_path / f"mark-{n}")} if keys.get("once", True) else {})
            for n, fault in enumerate(faults)
        ]
        keys.pop("once", None)
        found, said = reports(params={"faults": named}, **keys)
        assert len(found) == len(said) == 1, said
        return found[0], said[0]

    return run


def causes(report):
    return [(cause["who"], cause["what"]) for cause in report["causes"]]


@pytest.mark.parametrize(
    ("how", "what"),
    sampled(
        [
            ("kill", "was killed by SIGKILL"),
            ("crash", "was killed by SIGSEGV"),
            ("abort", "was killed by SIGABRT"),
            ("exit", "exited 4"),
            ("raise", "raised ValueError: as planned"),
            ("stop", "hung: it was stopped for "),
            ("sleep", "hung: it did nothing for "),
        ],
        0,
    ),
)
def test_the_failed_worker_is_named_and_the_others_keep_their_state(faulted, how, what):
    report, said = faulted({"how": how})
    [(who, words)] = causes(report)
    assert who == "rank 1"
    assert words.startswith(what)
    assert (report["ended"], report["halted"]) == ([], OTHERS)
    assert (report["outcome"], report["step"]) == ("recovered", 6)
    assert (report["checkpoint"], report["recomputed_steps"], report["recomputed_samples"]) == (
        None,
        0,
        0,
    )
    *first, ready, state, step = report["seconds"]  # which of the first two is first is open
    assert (sorted(first), ready, state, step) == (
        ["forked", "halted"],
        "all ready",
        "state",
        "next step",
    )
    assert report["state_bytes"] > 0
    assert sum(report["seconds"].values()) == pytest.approx(report["total_s"], abs=0.01)
    head, *_ = said.splitlines()
    assert head.startswith(f"── recovery 1, after step 6 ── rank 1 {what}")
    assert "others      ranks 0, 2 and 3 halted and kept their state" in said


def test_a_worker_that_hangs_says_where(faulted, tmp_path):
    report, said = faulted({"how": "sleep"})
    [cause] = report["causes"]
    assert 3 <= len(cause["stack"]) <= 5
    assert cause["stack"][0].endswith(" in wait")
    assert any(re.search(r'faulty_tasks.py", line \d+ in fail', at) for at in cause["stack"])
    file = tmp_path / "run" / "logs" / "rank-1.stacks"
    assert f"stack       {cause['stack'][0]}" in said
    assert str(file) in said
    assert 'in main\n  File "' in file.read_text()


def test_a_hang_is_reported_with_where_all_workers_were(faulted):
    report, said = faulted({"how": "sleep"})
    assert report["missing"] == [1]
    where = {each["rank"]: each for each in report["whereabouts"]}
    assert sorted(where) == [0, 1, 2, 3]
    assert where[1]["doing"] == "running the task's code in step 7"
    for rank in OTHERS:
        assert where[rank]["doing"] == "summing the gradient of step 7"
        assert where[rank]["waits_for"] == [1]
        assert re.search(r'faulty_tasks.py", line \d+ in main', where[rank]["stack"][0])
    lines = [re.sub(r'at File ".*/', "at ", line) for line in said.splitlines()]
    missing = lines.index("   missing     rank 1 was running the task's code in step 7")
    waiting = (
        "   waiting     ranks 0, 2 and 3 were summing the gradient of step 7, and waited for rank 1"
    )
    assert lines[missing + 1] == waiting


def test_a_hang_in_an_evaluation_is_found(faulted):
    report, _ = faulted({"how": "sleep", "at": "__main__:measure", "step": 5})
    assert report["missing"] == [1]
    where = {each["rank"]: each for each in report["whereabouts"]}
    assert {each["doing"] for each in where.values()} == {"evaluating after step 5"}
    assert all(where[rank]["waits_for"] == [1] for rank in OTHERS)


def test_a_worker_that_is_stopped_cannot_be_asked(faulted):
    report, said = faulted({"how": "stop"})
    assert report["causes"][0]["stack"] == []
    assert "   stack       none: the worker could not write it" in said
    assert report["missing"] == [1]
    where = {each["rank"]: each for each in report["whereabouts"]}
    assert where[1]["doing"] == "running the task's code in step 7"
    assert all(where[rank]["stack"] for rank in OTHERS)


@pytest.mark.soak
def test_a_signal_that_workers_leave_to_their_agent_costs_nothing(reports, tmp_path):
    fault = {"at": A_SHARD, "when": "before", "rank": 1, "step": 6, "how": "terminate"}
    named = {**fault, "mark": str(tmp_path / "mark")}
    assert reports(params={"faults": [named]}) == ([], [])
    assert (tmp_path / "mark").exists()


@pytest.mark.soak
def test_two_workers_that_are_lost_at_once_are_both_named(faulted):
    report, said = faulted({"how": "kill"}, {"how": "kill", "rank": 2})
    ranks = [f"rank {rank}" for rank in (1, 2)]
    assert sorted(causes(report)) == [(who, "was killed by SIGKILL") for who in ranks]
    assert report["halted"] == [0, 3]
    assert "   and         rank " in said


def test_a_death_in_a_recovery_belongs_to_its_report(faulted):
    link = "holdfast.worker.agent_link:AgentLink.await_resume_until"
    second = {"at": link, "when": "after", "step": 0, "generation": 2, "how": "raise"}
    report, _ = faulted({"how": "kill"}, second)
    assert causes(report) == [
        ("rank 1", "was killed by SIGKILL"),
        ("rank 1", "raised ValueError: as planned"),
    ]
    assert report["halted"] == OTHERS


def test_a_repeated_failure_has_one_report_which_says_that_the_run_failed(faulted):
    report, said = faulted({"how": "raise"}, once=False)
    assert causes(report) == [("rank 1", "raised ValueError: as planned")] * 4
    assert (report["outcome"], report["ended"]) == ("failed", OTHERS)
    assert said.splitlines()[0].endswith(" rank 1 raised ValueError: as planned, 4 times")
    assert said.splitlines()[-1] == "   then        the run failed"


@pytest.mark.soak
@pytest.mark.parametrize(("keys", "outcome"), [({}, "recovered"), ({"sync": "ddp"}, "failed")])
def test_a_worker_that_runs_out_of_memory_ends_the_run_only_where_it_is_needed(
    faulted, keys, outcome
):
    of = "step.ddp:DdpStepper" if keys else "step.tree:TreeStepper"
    report, _ = faulted({"at": f"holdfast.worker.{of}.begin_shard", "how": "memory"}, **keys)
    [(who, what)] = causes(report)
    assert (who, report["outcome"]) == ("rank 1", outcome)
    assert what.startswith("ran out of memory (see rank-1.log): ")


@pytest.mark.parametrize("how", sampled(["raise", "kill", "stop"], 1))
@pytest.mark.parametrize("keys", sampled([{"sync": "ddp"}, {"on_failure": "restart"}], 1))
def test_in_a_failure_that_ends_all_workers_only_the_root_cause_is_named(faulted, how, keys):
    of = "step.ddp:DdpStepper" if "sync" in keys else "step.tree:TreeStepper"
    report, said = faulted({"at": f"holdfast.worker.{of}.begin_shard", "how": how}, **keys)
    assert [who for who, _ in causes(report)] == ["rank 1"]
    assert (report["ended"], report["halted"]) == (OTHERS, [])
    assert (report["outcome"], report["checkpoint"]) == ("recovered", 4)
    # Rank 0 may be ended before it has written the line of step 6, which then counts as step 5.
    assert report["recomputed_steps"] == 2
    assert report["recomputed_samples"] in {10 + 20, 10 + 10}
    assert "others      ranks 0, 2 and 3 were ended" in said


@pytest.mark.parametrize("how", sampled(["raise", "kill", "stop"], 0))
def test_in_a_run_that_cannot_recover_only_the_root_cause_is_named(faulted, how):
    fault = {"at": "holdfast.worker.step.ddp:DdpStepper.begin_shard", "how": how}
    report, _ = faulted(fault, sync="ddp", on_failure="stop")
    assert [who for who, _ in causes(report)] == ["rank 1"]
    assert (report["outcome"], report["ended"]) == ("failed", OTHERS)


def test_what_is_wrong_with_the_job_has_no_report(reports):
    assert reports(task=f"{FAILING_TASKS}:vector_loss") == ([], [])


def kill(run_dir, who, step):
    """Kill the process of a kind once `step` steps are committed."""
    killed = []

    def watch(committed):
        if not killed and committed >= step:
            started = [e["pid"] for e in events_of(run_dir) if e["event"] == f"{who}-started"]
            killed.append(os.kill(started[-1], signal.SIGKILL))

    return watch


LONG = {"task": "classification", "workers": 2, "shards": 4, "batch": 64, "epochs": 10_000}


@pytest.mark.parametrize(("who", "on"), sampled([("agent", {}), ("fork-server", {"on": None})], 0))
def test_the_loss_of_a_host_rolls_back_and_says_how_far(reports, tmp_path, who, on):
    keys = {**LONG, "checkpoint": {"every_steps": 100}, **on}
    found, said = reports(kill(tmp_path / "run", who, 110), **keys)  # far from the next one
    [report] = found
    assert causes(report) == [(who, "was killed by SIGKILL")]
    assert (report["ended"], report["halted"]) == ([0, 1], [])
    assert report["checkpoint"] % 100 == 0
    assert report["recomputed_steps"] == report["step"] - report["checkpoint"] > 0
    assert 0 < report["recomputed_samples"] <= 64 * report["recomputed_steps"]
    assert f" the {who.replace('-', ' ')} was killed by SIGKILL" in said[0]
    assert f"   resumed     from the checkpoint of step {report['checkpoint']}" in said[0]
    assert "others      ranks 0 and 1 were ended" in said[0]


@pytest.mark.soak
def test_the_loss_of_a_coordinator_affects_no_worker(reports, tmp_path):
    found, said = reports(kill(tmp_path / "run", "coordinator", 20), **LONG)
    [report] = found
    assert causes(report) == [("coordinator", "was killed by SIGKILL")]
    assert (report["ended"], report["halted"], report["recomputed_steps"]) == ([], [], 0)
    assert list(report["seconds"]) == ["back"]
    assert "others      no other worker was affected" in said[0]
