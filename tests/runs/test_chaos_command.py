"""`holdfast chaos`: a job is run with faults, or a run of another process gets them."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from conftest import SMALL, events_of, holdfast_processes, metrics_of, sampled, wait_until
from holdfast.errors import JobError
from holdfast.faults.target import Target
from holdfast.job import load
from holdfast.linux.lifeline import STOP_SIGNALS

pytestmark = pytest.mark.slow

HOLDFAST = [sys.executable, "-m", "holdfast"]
KEYS = {"epochs": 5, "workers": 2}


@pytest.fixture
def start(mark):
    """Start a command: `start("train", …) -> process`; it is ended with the test."""
    started = []

    def begin(*arguments):
        process = subprocess.Popen(
            [*HOLDFAST, *map(str, arguments)],
            env={**os.environ, mark: "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate(timeout=60)
    wait_until(lambda: not holdfast_processes(mark))


@pytest.fixture
def job(tmp_path):
    """A function that writes a job file: of so many epochs of six steps."""

    def written(epochs):
        path = tmp_path / "small.yaml"
        values = {**SMALL, **KEYS, "epochs": epochs, "checkpoint": {"every_steps": 10_000}}
        path.write_text(load.dump(load.check(values, where="test")))
        return path

    return written


def finish(process):
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def last_object(out):
    return json.loads(out.splitlines()[-1])


def under_way(start, job, run_dir, epochs):
    """A run in another process that has begun to train."""
    process = start("train", job(epochs), "--run", run_dir, "--json")
    wait_until(lambda: (run_dir / "metrics.jsonl").exists() and metrics_of(run_dir) != [])
    return process


def test_a_job_is_run_with_faults_and_both_are_reported(start, job, tmp_path, reference):
    plan = tmp_path / "plan.yaml"
    plan.write_text("seed: 4\nfaults:\n  - {kind: stop, step: 9}\n")
    flags = ["--fault", "kill:step=5,rank=1", "--plan", plan, "--random", "1"]
    status, out, err = finish(start("chaos", job(5), *flags, "--run", tmp_path / "run", "--json"))
    assert status == 0, err
    found = last_object(out)
    assert found["weights_sha256"] == reference(5)
    assert found["missed"] == []
    assert len(found["injected"]) == 3
    assert {"kind": "kill", "rank": 1} in [
        {key: fault[key] for key in ("kind", "rank") if key in fault} for fault in found["injected"]
    ]
    assert load.load(str(tmp_path / "run" / "job.yaml")).epochs == 5


@pytest.mark.soak
def test_without_json_there_are_tables(start, job, tmp_path):
    flags = ["--fault", "kill:step=5,rank=1", "--fault", "exit:step=99"]
    status, out, err = finish(start("chaos", job(2), *flags, "--run", tmp_path / "run"))
    assert status == 1
    assert "weights_sha256" in out
    assert "injected at step" in out
    assert "missed: the run has no more than 12 steps" in " ".join(out.split())
    (line,) = [line for line in err.splitlines() if line.startswith("holdfast: ")]
    assert line.startswith("holdfast: 1 of 2 faults missed: exit:rank=")
    assert line.endswith("step=99: the run has no more than 12 steps")


@pytest.mark.soak
def test_the_error_of_the_run_is_that_of_the_command(start, job, tmp_path):
    flags = ["--fault", "nan:step=3,rank=0", "--fault", "kill:step=99"]
    status, out, err = finish(start("chaos", job(2), *flags, "--run", tmp_path / "run"))
    assert status == 2
    assert "nan" in out
    assert "injected at step 3" in out
    (line,) = [line for line in err.splitlines() if line.startswith("holdfast: ")]
    assert "is not finite" in line


@pytest.mark.soak
def test_a_run_that_was_stopped_says_so_though_faults_have_missed(start, job, tmp_path):
    run_dir = tmp_path / "run"
    process = start(
        "chaos", job(500), "--fault", "exit:step=2999,rank=0", "--run", run_dir, "--json"
    )
    wait_until(lambda: (run_dir / "metrics.jsonl").exists() and metrics_of(run_dir) != [])
    process.send_signal(signal.SIGINT)
    status, out, _ = finish(process)
    assert status == 130
    found = last_object(out)
    assert found["status"] == "stopped"
    assert [missed["reason"] for missed in found["missed"]] == ["the run ended before that"]


@pytest.mark.soak
def test_faults_are_injected_into_a_run_of_another_process(start, job, tmp_path, reference):
    run_dir = tmp_path / "run"
    training = under_way(start, job, run_dir, epochs=30)
    flags = ["--fault", "kill:rank=1", "--fault", "raise:after_s=0.1", "--fault", "coordinator"]
    status, out, err = finish(start("chaos", "--run", run_dir, *flags, "--json"))
    assert status == 0, err
    assert last_object(out)["missed"] == []
    assert sorted(fault["kind"] for fault in events_of(run_dir, "fault-injected")) == [
        "coordinator", "kill", "raise",
    ]  # fmt: skip
    status, out, err = finish(training)
    assert status == 0, err
    assert last_object(out)["weights_sha256"] == reference(30)


@pytest.mark.soak
def test_an_injector_that_is_ended_leaves_no_request_behind(start, job, tmp_path):
    run_dir, full = tmp_path / "run", "disk-full:after_s=0,rank=0"  # pending until the run's end
    training = under_way(start, job, run_dir, epochs=500)

    def blow(*flags):
        before = len(events_of(run_dir, "fault-injected"))
        injector = start(
            "chaos", "--run", run_dir, *flags, "--fault", "slow:after_s=0,seconds=0", "--json"
        )
        wait_until(lambda: len(events_of(run_dir, "fault-injected")) > before)
        return injector

    for number in STOP_SIGNALS:
        injector = blow("--fault", full)
        injector.send_signal(number)
        status, out, err = finish(injector)
        assert (status, err) == (130, "")
        assert [fault["kind"] for fault in last_object(out)["injected"]] == ["slow"]
        assert [fault["reason"] for fault in last_object(out)["missed"]] == [
            "rank 0 wrote no checkpoint after that"
        ]
    injector = blow("--fault", full)
    injector.kill()
    finish(injector)
    assert finish(blow())[0] == 0  # which withdraws what that one has ordered
    training.send_signal(signal.SIGINT)
    status, _, err = finish(training)
    assert status == 130, err


@pytest.mark.soak
def test_a_directory_that_no_run_holds_gets_no_faults_though_its_pids_are_in_use(
    start, job, tmp_path
):
    run_dir = tmp_path / "run"
    under_way(start, job, run_dir, epochs=500)
    Target.under_way(run_dir)
    shutil.copytree(run_dir, tmp_path / "other", ignore=shutil.ignore_patterns("*.sock"))
    with pytest.raises(JobError, match="no run is in progress in"):
        Target.under_way(tmp_path / "other")


WAITS = """
import pathlib, sys, time
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.01)
"""


@pytest.mark.soak
def test_faults_are_injected_into_a_script_of_another_process(start, tmp_path):
    run_dir, script, end = tmp_path / "run", tmp_path / "waits.py", tmp_path / "end"
    script.write_text(WAITS)
    running = start("run", "--workers", "2", "--run", run_dir, "--json", script, end)
    events = run_dir / "events.jsonl"
    wait_until(lambda: events.exists() and events_of(run_dir, "generation-started") != [])
    status, _, err = finish(start("chaos", "--run", run_dir, "--fault", "nan:after_s=0"))
    assert status == 2
    assert "a script accepts agent, coordinator, kill, stop, each with after_s" in err
    flags = ["--fault", "kill:rank=1,after_s=0", "--json"]
    status, out, err = finish(start("chaos", "--run", run_dir, *flags))
    assert status == 0, err
    assert last_object(out)["injected"] == [{"kind": "kill", "rank": 1, "after_s": 0.0}]
    wait_until(lambda: len(events_of(run_dir, "generation-started")) == 2)
    end.touch()
    status, out, err = finish(running)
    assert status == 0, err
    assert (last_object(out)["status"], last_object(out)["restarts"]) == ("finished", 1)


@pytest.mark.soak
def test_one_process_at_a_time_injects_into_a_run(start, job, tmp_path):
    run_dir = tmp_path / "run"
    under_way(start, job, run_dir, epochs=500)
    first = start("chaos", "--run", run_dir, "--fault", "kill:step=1", "--fault", "exit:step=2999")
    wait_until(lambda: events_of(run_dir, "fault-injected") != [])
    status, _, err = finish(start("chaos", "--run", run_dir, "--fault", "kill"))
    assert (status, err) == (
        2,
        "holdfast: another process injects faults into this run; wait for its end\n",
    )
    assert first.poll() is None


@pytest.mark.soak
def test_the_injection_ends_with_the_run_however_that_ends(start, job, tmp_path):
    run_dir = tmp_path / "run"
    training = under_way(start, job, run_dir, epochs=500)
    injector = start(
        "chaos", "--run", run_dir, "--fault", "kill:step=1", "--fault", "exit:step=2999"
    )
    wait_until(lambda: events_of(run_dir, "fault-injected") != [])
    training.kill()
    status, _, err = finish(injector)
    assert status == 1
    assert "the run ended before that" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    sampled(
        [
            (["digits"], "no fault is planned; add --fault kill, --random 3 or --plan FILE"),
            (["--fault", "kill"], "name a job to run, or a run in progress with --run"),
            (
                ["--fault", "kill", "--run", "none"],
                "no run is in progress in none; name the directory",
            ),
            (["--fault", "kill", "--run", __file__], "no run is in progress in "),
            (["digits", "--fault", "kil"], "--fault kil: kind: input should be 'kill', 'stop', "),
            (["digits", "--fault", "kill:rank=3"], "rank must be below workers=2"),
            (
                ["digits", "sync=ddp", "--fault", "nan"],
                "with sync=ddp or parallel no shard has a gradient",
            ),
            (["digits", "--plan", "none.yaml"], "--plan none.yaml: No such file or directory"),
        ],
        4,
    ),
)
def test_an_impossible_plan_is_refused_before_anything_runs(start, tmp_path, arguments, message):
    status, out, err = finish(start("chaos", *arguments))
    assert status == 2
    assert out == ""
    assert err.startswith("holdfast: ")
    assert message in err
    assert err.count("\n") == 1
