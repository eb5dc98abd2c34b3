"""Storms: what is planned strikes, in the step that was meant, and the run gets over it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import uuid

import pytest

from conftest import SMALL, events_of, holdfast_processes, metrics_of, sampled, wait_until
from holdfast.engines.run import LaunchOptions
from holdfast.engines.train import run_job
from holdfast.errors import CheckpointError, HoldfastError, JobError, NonFiniteError
from holdfast.faults.fault_injector import FaultInjector
from holdfast.faults.plan import planned
from holdfast.faults.target import Target
from holdfast.job import load
from holdfast.linux.lifeline import STOP_SIGNALS
from holdfast.observe import lines

pytestmark = pytest.mark.slow

HOLDFAST = [sys.executable, "-m", "holdfast"]
KEYS = {"epochs": 5, "workers": 2, "checkpoint": {"every_steps": 4}}
STEPS = 30


@pytest.fixture(scope="module")
def known():
    """The weights of undisturbed runs by their epochs."""
    return {}


@pytest.fixture
def undisturbed(train, known):
    def weights(epochs):
        if epochs not in known:
            known[epochs] = train(epochs=epochs)["weights_sha256"]
        return known[epochs]

    return weights


def planned_of(*flags, seed=None, num_random=0):
    return planned(flags, file=None, seed=seed, num_random=num_random)


@pytest.fixture
def weather(forks, tmp_path):
    """Train in a storm: `weather(flag, …, key=value, …) -> result, storm`."""

    def run(*flags, name="run", resume=False, seed=None, num_random=0, **keys):
        job = load.check({**SMALL, **KEYS, **keys}, where="test")
        storm = FaultInjector(planned_of(*flags, seed=seed, num_random=num_random), job)
        setting = LaunchOptions(forks=forks, sidecar=storm.running)
        result = run_job(job, setting, run_dir=tmp_path / name, resume=resume)
        return result.as_dict(), storm

    return run


def named(run_dir, name):
    return [event for event in events_of(run_dir) if event["event"] == name]


def blamed(run_dir):
    """Whom the receipts of a run blame, and what they say was on purpose."""
    receipts = lines.read(run_dir / "recoveries.jsonl")
    return [
        (cause["who"], cause["injected_fault"]) for each in receipts for cause in each["causes"]
    ]


@pytest.mark.parametrize("flag", sampled(["kill", "stop", "exit", "raise", "slow"], 0))
def test_what_strikes_a_worker_does_not_show_in_the_weights(weather, undisturbed, tmp_path, flag):
    lasting = ",seconds=0.1" if flag == "slow" else ""
    result, storm = weather(f"{flag}:step=5,rank=1{lasting}")
    assert result["weights_sha256"] == undisturbed(KEYS["epochs"])
    assert storm.missed == []
    (fault,) = named(tmp_path / "run", "fault-injected")
    assert (fault["kind"], fault["rank"]) == (flag, 1)
    ended = [event["rank"] for event in named(tmp_path / "run", "worker-exited")]
    assert ended == ([] if flag == "slow" else [1])
    assert blamed(tmp_path / "run") == ([] if flag == "slow" else [("rank 1", flag)])
    if flag in ("exit", "raise", "slow"):
        assert fault["step"] == 5
    else:
        assert fault["step"] >= 5
        names = [event["event"] for event in events_of(tmp_path / "run")]
        assert names.index("fault-injected") < names.index("worker-exited")  # which it explains


@pytest.mark.parametrize(("flag", "ended"), [("coordinator", "coordinator"), ("agent", "agent")])
def test_what_strikes_others_does_not_show_in_the_weights(
    weather, undisturbed, tmp_path, flag, ended
):
    result, storm = weather(f"{flag}:step=6")
    assert result["weights_sha256"] == undisturbed(KEYS["epochs"])
    assert [struck.fault.kind for struck in storm.injected] == [flag]
    assert len(named(tmp_path / "run", f"{ended}-exited")) == 1
    assert blamed(tmp_path / "run") == [(ended, flag)]


@pytest.mark.soak
def test_a_full_disk_costs_a_checkpoint_and_no_step(weather, undisturbed, tmp_path):
    result, storm = weather("disk-full:step=6,rank=1")
    assert result["weights_sha256"] == undisturbed(KEYS["epochs"])
    assert [struck.step for struck in storm.injected] == [8]
    (failed,) = named(tmp_path / "run", "checkpoint-failed")
    assert failed["step"] == 8
    assert "rank 1: [Errno 28] No space left on device" in failed["reason"]


def test_damage_shows_when_the_checkpoint_is_needed_and_is_passed_over(
    weather, undisturbed, tmp_path
):
    checkpoint = {"every_steps": 4, "keep": 9}
    result, storm = weather("corrupt-checkpoint:step=9", "agent:step=9", checkpoint=checkpoint)
    assert result["weights_sha256"] == undisturbed(KEYS["epochs"])
    assert [struck.fault.kind for struck in storm.injected] == ["corrupt-checkpoint", "agent"]
    refused = named(tmp_path / "run", "checkpoint-rejected")
    if refused:
        assert {event["rank"] for event in refused} == {0, 1}
        assert {event["directory"].rpartition("/")[2] for event in refused} == {"step-00000008"}
    else:  # the coordinator had not yet verified it, and was first
        (damaged,) = named(tmp_path / "run", "checkpoint-corrupt")
        assert damaged["step"] == 8


def test_a_nan_strikes_the_very_step(weather, tmp_path):
    with pytest.raises(NonFiniteError):
        weather("nan:step=7,rank=1")
    (fault,) = named(tmp_path / "run", "fault-injected")
    assert (fault["kind"], fault["rank"], fault["step"]) == ("nan", 1, 7)
    assert metrics_of(tmp_path / "run")[-1]["step"] == 7


@pytest.mark.soak
@pytest.mark.parametrize("flag", sampled(["nan", "flip"], 1))
def test_wrong_bits_are_computed_again_elsewhere(weather, undisturbed, tmp_path, flag):
    result, storm = weather(f"{flag}:step=7,rank=1", non_finite="recompute")
    assert result["weights_sha256"] == undisturbed(KEYS["epochs"])
    assert [struck.step for struck in storm.injected] == [7]
    assert [event["rank"] for event in named(tmp_path / "run", "worker-exited")] == [1]


@pytest.mark.soak
def test_a_step_with_a_nan_can_be_left_out(weather, tmp_path):
    result, _ = weather("nan:step=7,rank=1", non_finite="skip")
    assert result["steps"] == STEPS
    skipped = [line["step"] for line in metrics_of(tmp_path / "run") if line.get("skipped")]
    assert skipped == [8]


def test_a_flipped_bit_counts_as_not_finite(weather, tmp_path):
    with pytest.raises(NonFiniteError):
        weather("flip:step=7,rank=0")
    (fault,) = named(tmp_path / "run", "fault-injected")
    assert (fault["kind"], fault["step"]) == ("flip", 7)


@pytest.mark.soak
def test_many_faults_strike_each_once_though_one_takes_the_agent(weather, undisturbed):
    flags = ["agent:step=3", "exit:step=6,rank=1", "kill:step=6,rank=0", "raise:step=20,rank=0",
             "kill:after_s=0", "exit:step=29,rank=0"]  # fmt: skip
    result, storm = weather(*flags, restarts={"limit": 99})
    assert result["weights_sha256"] == undisturbed(KEYS["epochs"])
    assert storm.missed == []
    assert sorted(struck.fault.kind for struck in storm.injected) == sorted(
        flag.partition(":")[0] for flag in flags
    )


@pytest.mark.soak
def test_a_run_that_goes_on_is_struck_in_the_steps_that_are_left(weather, undisturbed, tmp_path):
    with pytest.raises(NonFiniteError):
        weather("nan:step=7,rank=1")
    flags = ["exit:rank=0", "exit:rank=1", "slow:seconds=0.01"]
    result, storm = weather(*flags, resume=True)
    assert result["weights_sha256"] == undisturbed(KEYS["epochs"])
    assert storm.missed == []
    assert [struck.step for struck in storm.injected] == [s.fault.step for s in storm.injected]
    drawn = planned_of(*flags).drawn(KEYS["workers"], range(4, STEPS))
    assert [struck.fault for struck in storm.injected] == drawn


@pytest.mark.soak
def test_what_is_due_does_not_wait_for_what_is_not(weather):
    later, soon = "exit:step=70,rank=1", "exit:after_s=0.05,rank=1"
    _, storm = weather(later, soon, epochs=12)
    assert [struck.fault.step for struck in storm.injected] == [None, 70]
    assert storm.injected[0].step < storm.injected[1].step == 70


def test_the_same_seed_is_the_same_storm(weather, undisturbed):
    found = []
    for name in ("first", "second"):
        result, storm = weather(name=name, seed=5, num_random=4, restarts={"limit": 99})
        assert result["weights_sha256"] == undisturbed(KEYS["epochs"])
        assert storm.missed == []
        found.append(sorted(str(struck.fault) for struck in storm.injected))
    assert found[0] == found[1]


@pytest.mark.soak
def test_sync_ddp_is_struck_too(weather, train):
    result, storm = weather("raise:step=5,rank=1", "kill:step=12,rank=0", sync="ddp")
    assert storm.missed == []
    assert result["weights_sha256"] == train(sync="ddp", **KEYS)["weights_sha256"]


@pytest.mark.parametrize(
    ("flag", "reason"),
    sampled(
        [
            ("kill:step=99", "the run has no more than 30 steps"),
            ("exit:step=99", "the run has no more than 30 steps"),
            ("kill:after_s=600", "the run ended before that"),
            ("exit:after_s=600", "the run ended before that"),
            ("exit:step=30,rank=1", "rank 1 began no step from then on"),
        ],
        0,
        4,
    ),
)
def test_what_cannot_strike_is_told_with_the_reason(weather, tmp_path, flag, reason):
    result, storm = weather(flag)
    assert result["steps"] == STEPS
    assert [missed.reason for missed in storm.missed] == [reason]
    assert storm.injected == []
    assert named(tmp_path / "run", "fault-injected") == []


@pytest.mark.soak
def test_one_that_waits_for_another_says_so(weather):
    _, storm = weather("exit:step=30,rank=1", "exit:step=30,rank=1")
    assert [missed.reason for missed in storm.missed] == [
        "rank 1 began no step from then on",
        "another exit was still to strike rank 1",
    ]


@pytest.mark.soak
def test_a_full_disk_at_the_end_is_the_error_of_the_run(weather, tmp_path):
    with pytest.raises(CheckpointError, match="the checkpoint of step 30 could not be written"):
        weather("disk-full:step=29,rank=0")
    assert len(named(tmp_path / "run", "fault-injected")) == 1


@pytest.mark.soak
def test_an_error_of_the_storm_is_raised_once_the_run_has_ended(train, tmp_path):
    storm = FaultInjector(planned_of("kill:step=5"), load.check({**SMALL, **KEYS}, where="test"))
    run_dir, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    failed = pytest.raises(HoldfastError, match=r"the storm has ended: .*elsewhere.*; the run went")
    with failed, storm.running(elsewhere):  # is not there
        result = train(run_dir=run_dir, **KEYS)
    assert result["steps"] == STEPS


def test_a_run_whose_storm_fails_keeps_its_result(forks, tmp_path):
    job = load.check({**SMALL, "epochs": 1}, where="test")
    storm = FaultInjector(planned_of("kill:step=5"), job)
    setting = LaunchOptions(
        forks=forks, sidecar=lambda run_dir: storm.running(run_dir / "elsewhere")
    )
    with pytest.raises(HoldfastError, match="the storm has ended"):
        run_job(job, setting, run_dir=tmp_path / "run", resume=False)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "finished"


@pytest.fixture
def mark():
    """A word in the environment of a command, by which all its descendants are known."""
    name = f"HOLDFAST_TEST_{uuid.uuid4().hex}"
    yield name
    assert holdfast_processes(name) == []


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


def test_a_job_is_run_in_a_storm_and_both_are_told_of(start, job, tmp_path, undisturbed):
    plan = tmp_path / "plan.yaml"
    plan.write_text("seed: 4\nfaults:\n  - {kind: stop, step: 9}\n")
    flags = ["--fault", "kill:step=5,rank=1", "--plan", plan, "--random", "1"]
    status, out, err = finish(start("chaos", job(5), *flags, "--run", tmp_path / "run", "--json"))
    assert status == 0, err
    found = last_object(out)
    assert found["weights_sha256"] == undisturbed(5)
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
    assert "struck at step" in out
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
    assert "struck at step 3" in out
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
def test_a_run_of_another_process_is_struck(start, job, tmp_path, undisturbed):
    run_dir = tmp_path / "run"
    training = under_way(start, job, run_dir, epochs=30)
    flags = ["--fault", "kill:rank=1", "--fault", "raise:after_s=0.1", "--fault", "coordinator"]
    status, out, err = finish(start("chaos", "--run", run_dir, *flags, "--json"))
    assert status == 0, err
    assert last_object(out)["missed"] == []
    assert sorted(fault["kind"] for fault in named(run_dir, "fault-injected")) == [
        "coordinator", "kill", "raise",
    ]  # fmt: skip
    status, out, err = finish(training)
    assert status == 0, err
    assert last_object(out)["weights_sha256"] == undisturbed(30)


@pytest.mark.soak
def test_a_storm_that_is_ended_leaves_no_order_behind(start, job, tmp_path):
    run_dir, full = tmp_path / "run", "disk-full:after_s=0,rank=0"  # pending until the run's end
    training = under_way(start, job, run_dir, epochs=500)

    def blow(*flags):
        before = len(named(run_dir, "fault-injected"))
        storm = start(
            "chaos", "--run", run_dir, *flags, "--fault", "slow:after_s=0,seconds=0", "--json"
        )
        wait_until(lambda: len(named(run_dir, "fault-injected")) > before)
        return storm

    for number in STOP_SIGNALS:
        storm = blow("--fault", full)
        storm.send_signal(number)
        status, out, err = finish(storm)
        assert (status, err) == (130, "")
        assert [fault["kind"] for fault in last_object(out)["injected"]] == ["slow"]
        assert [fault["reason"] for fault in last_object(out)["missed"]] == [
            "rank 0 wrote no checkpoint from then on"
        ]
    storm = blow("--fault", full)
    storm.kill()
    finish(storm)
    assert finish(blow())[0] == 0  # which withdraws what that one has ordered
    training.send_signal(signal.SIGINT)
    status, _, err = finish(training)
    assert status == 130, err


@pytest.mark.soak
def test_a_directory_that_no_run_holds_is_not_struck_whoever_has_its_pids(start, job, tmp_path):
    run_dir = tmp_path / "run"
    under_way(start, job, run_dir, epochs=500)
    Target.under_way(run_dir)
    shutil.copytree(run_dir, tmp_path / "other", ignore=shutil.ignore_patterns("*.sock"))
    with pytest.raises(JobError, match="no run is under way in"):
        Target.under_way(tmp_path / "other")


WAITS = """
import pathlib, sys, time
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.01)
"""


@pytest.mark.soak
def test_a_script_of_another_process_is_struck(start, tmp_path):
    run_dir, script, end = tmp_path / "run", tmp_path / "waits.py", tmp_path / "end"
    script.write_text(WAITS)
    running = start("run", "--workers", "2", "--run", run_dir, "--json", script, end)
    events = run_dir / "events.jsonl"
    wait_until(lambda: events.exists() and named(run_dir, "generation-started") != [])
    status, _, err = finish(start("chaos", "--run", run_dir, "--fault", "nan:after_s=0"))
    assert status == 2
    assert "a script is struck by agent, coordinator, kill, stop, each with after_s" in err
    flags = ["--fault", "kill:rank=1,after_s=0", "--json"]
    status, out, err = finish(start("chaos", "--run", run_dir, *flags))
    assert status == 0, err
    assert last_object(out)["injected"] == [{"kind": "kill", "rank": 1, "after_s": 0.0}]
    wait_until(lambda: len(named(run_dir, "generation-started")) == 2)
    end.touch()
    status, out, err = finish(running)
    assert status == 0, err
    assert (last_object(out)["status"], last_object(out)["restarts"]) == ("finished", 1)


@pytest.mark.soak
def test_one_storm_at_a_time_strikes_a_run(start, job, tmp_path):
    run_dir = tmp_path / "run"
    under_way(start, job, run_dir, epochs=500)
    first = start("chaos", "--run", run_dir, "--fault", "kill:step=1", "--fault", "exit:step=2999")
    wait_until(lambda: named(run_dir, "fault-injected") != [])
    status, _, err = finish(start("chaos", "--run", run_dir, "--fault", "kill"))
    assert (status, err) == (2, "holdfast: another storm strikes this run; wait for its end\n")
    assert first.poll() is None


@pytest.mark.soak
def test_the_end_of_the_run_is_that_of_the_storm_however_it_comes(start, job, tmp_path):
    run_dir = tmp_path / "run"
    training = under_way(start, job, run_dir, epochs=500)
    storm = start("chaos", "--run", run_dir, "--fault", "kill:step=1", "--fault", "exit:step=2999")
    wait_until(lambda: named(run_dir, "fault-injected") != [])
    training.kill()
    status, _, err = finish(storm)
    assert status == 1
    assert "the run ended before that" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    sampled(
        [
            (["digits"], "no fault is planned; add --fault kill, --random 3 or --plan FILE"),
            (["--fault", "kill"], "name a job to run, or with --run a run that is under way"),
            (
                ["--fault", "kill", "--run", "none"],
                "no run is under way in none; name the directory",
            ),
            (["--fault", "kill", "--run", __file__], "no run is under way in "),
            (["digits", "--fault", "kil"], "--fault kil: kind: input should be 'kill', 'stop', "),
            (["digits", "--fault", "kill:rank=3"], "there is no such rank with workers=2"),
            (["digits", "sync=ddp", "--fault", "nan"], "with sync=ddp no shard has a gradient"),
            (["digits", "--plan", "none.yaml"], "--plan none.yaml: No such file or directory"),
        ],
        0,
        4,
    ),
)
def test_what_cannot_be_is_refused_before_anything_runs(start, tmp_path, arguments, message):
    status, out, err = finish(start("chaos", *arguments))
    assert status == 2
    assert out == ""
    assert err.startswith("holdfast: ")
    assert message in err
    assert err.count("\n") == 1


def test_a_run_that_is_over_is_not_struck(train, tmp_path):
    train(run_dir=tmp_path / "run")
    with pytest.raises(JobError, match="no run is under way in"):
        Target.under_way(tmp_path / "run")
