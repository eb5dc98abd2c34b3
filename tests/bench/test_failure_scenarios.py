"""Failure scenarios are judged by what the run has done."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from holdfast_bench.scenarios.scenario import SCENARIOS, Outcome, judged, outcome

BY_NAME = {each.name: each for each in SCENARIOS}
KILLED = BY_NAME["worker-killed"]
PASSED = Outcome(restored=(30,), recomputed=5, weights_sha256="same")


def test_a_restart_from_the_expected_checkpoint_passes():
    assert judged(KILLED, "restart", PASSED, "same") == ""


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"restored": (20,)}, "restart from 20; 5 steps again, not restart from 30"),
        ({"restored": ()}, "5 steps lost, not restart from 30"),
        ({"weights_sha256": "other"}, "other weights than the run without a fault"),
        ({"problem": "the run failed: why"}, "the run failed: why"),
    ],
    ids=["other checkpoint", "steps lost", "other weights", "failed"],
)  # fmt: skip
def test_anything_else_fails(change, problem):
    assert judged(KILLED, "restart", replace(PASSED, **change), "same") == problem


def test_a_live_recovery_must_lose_no_step():
    assert judged(KILLED, "live", Outcome(weights_sha256="same"), "same") == ""
    assert judged(KILLED, "live", PASSED, "same").endswith("not no step lost")


def test_what_a_run_must_report_is_demanded():
    full, reported = BY_NAME["disk-full"], ("checkpoint-failed step 30",)
    found = Outcome(weights_sha256="same", events=reported)
    assert judged(full, "live", found, "same") == ""
    assert judged(full, "live", replace(found, events=()), "same") == "no event checkpoint-failed"


def test_the_outcome_is_read_from_the_files_of_a_run():
    events = [
        {"event": "generation-started", "number": 1, "step": 0},
        {"event": "worker-exited", "rank": 0, "unexpected": True},
        {"event": "worker-exited", "rank": 1, "unexpected": False},  # ended by its agent
        {"event": "evaluated"},
        {"event": "generation-started", "number": 2, "step": 30},
    ]
    recovery = {"checkpoint": 30, "recomputed_steps": 5, "total_s": 0.25}
    assert outcome(events, [recovery], "same") == replace(
        PASSED,
        events=("generation 1 from step 0", "worker-exited rank 0", "generation 2 from step 30"),
        recovery_s=0.25,
    )


@pytest.mark.slow
@pytest.mark.soak
def test_a_scenario_runs_with_both_recoveries():
    command = [
        sys.executable,
        "-m",
        "holdfast_bench.run",
        "scenarios",
        "--scenarios",
        "checkpoint-damaged",
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    live, restart = json.loads(done.stdout)["rows"]
    assert (live["recovery"], live["happened"], live["passed"]) == ("live", "no step lost", True)
    assert restart["happened"] == "restart from 20; 15 steps again"
    assert restart["passed"]
    assert "checkpoint-rejected" in restart["events"]
    assert "checkpoint-rejected" not in live["events"]
