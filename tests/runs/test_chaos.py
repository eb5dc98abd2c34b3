"""Planned faults are injected in the step that was meant, and the run recovers from them."""

import json
import sys

import pytest

from conftest import SMALL, events_of, metrics_of, sampled
from holdfast.api.attended import Attendance
from holdfast.api.train import run_job
from holdfast.errors import CheckpointError, HoldfastError, JobError, NonFiniteError
from holdfast.faults.fault_injector import FaultInjector
from holdfast.faults.plan import planned
from holdfast.faults.target import Target
from holdfast.job import load
from holdfast.rundir import json_lines
from holdfast.runs.run import LaunchOptions

pytestmark = pytest.mark.slow

HOLDFAST = [sys.executable, "-m", "holdfast"]
KEYS = {"epochs": 5, "workers": 2, "checkpoint": {"every_steps": 4}}
STEPS = 30


def planned_of(*flags, seed=None, num_random=0):
    return planned(flags, file=None, seed=seed, num_random=num_random)


@pytest.fixture
def chaos(forks, tmp_path):
    """Train with faults: `chaos(flag, …, key=value, …) -> result, injector`."""

    def run(*flags, name="run", resume=False, seed=None, num_random=0, **keys):
        job = load.check({**SMALL, **KEYS, **keys}, where="test")
        injector = FaultInjector(planned_of(*flags, seed=seed, num_random=num_random), job)
        attendance = Attendance(sidecar=injector.running)
        result = run_job(
            job,
            LaunchOptions(forks=forks),
            run_dir=tmp_path / name,
            resume=resume,
            attendance=attendance,
        )
        return result.as_dict(), injector

    return run


def root_causes(run_dir):
    """The root causes in the recovery reports of a run, and their injected faults."""
    reports = json_lines.read(run_dir / "recoveries.jsonl")
    return [(cause["who"], cause["injected_fault"]) for each in reports for cause in each["causes"]]


@pytest.mark.parametrize("flag", sampled(["kill", "stop", "exit", "raise", "slow"], 0))
def test_a_fault_in_a_worker_does_not_affect_the_weights(chaos, reference, tmp_path, flag):
    lasting = ",seconds=0.1" if flag == "slow" else ""
    result, injector = chaos(f"{flag}:step=5,rank=1{lasting}")
    assert result["weights_sha256"] == reference(KEYS["epochs"])
    assert injector.missed == []
    (fault,) = events_of(tmp_path / "run", "fault-injected")
    assert (fault["kind"], fault["rank"]) == (flag, 1)
    ended = [event["rank"] for event in events_of(tmp_path / "run", "worker-exited")]
    assert ended == ([] if flag == "slow" else [1])
    assert root_causes(tmp_path / "run") == ([] if flag == "slow" else [("rank 1", flag)])
    if flag in ("exit", "raise", "slow"):
        assert fault["step"] == 5
    else:
        assert fault["step"] >= 5
        names = [event["event"] for event in events_of(tmp_path / "run")]
        assert names.index("fault-injected") < names.index("worker-exited")  # which it explains


@pytest.mark.parametrize(
    ("flag", "ended"), sampled([("coordinator", "coordinator"), ("agent", "agent")], 1)
)
def test_a_fault_elsewhere_does_not_affect_the_weights(chaos, reference, tmp_path, flag, ended):
    result, injector = chaos(f"{flag}:step=6")
    assert result["weights_sha256"] == reference(KEYS["epochs"])
    assert [injected.fault.kind for injected in injector.injected] == [flag]
    assert len(events_of(tmp_path / "run", f"{ended}-exited")) == 1
    assert root_causes(tmp_path / "run") == [(ended, flag)]


@pytest.mark.soak
def test_a_full_disk_costs_a_checkpoint_and_no_step(chaos, reference, tmp_path):
    result, injector = chaos("disk-full:step=6,rank=1")
    assert result["weights_sha256"] == reference(KEYS["epochs"])
    assert [injected.step for injected in injector.injected] == [8]
    (failed,) = events_of(tmp_path / "run", "checkpoint-failed")
    assert failed["step"] == 8
    assert "rank 1: [Errno 28] No space left on device" in failed["reason"]


@pytest.mark.soak
def test_a_corrupt_checkpoint_is_skipped_when_it_is_needed(chaos, reference, tmp_path):
    checkpoint = {"every_steps": 4, "keep": 9}
    result, injector = chaos("corrupt-checkpoint:step=9", "agent:step=9", checkpoint=checkpoint)
    assert result["weights_sha256"] == reference(KEYS["epochs"])
    assert [injected.fault.kind for injected in injector.injected] == [
        "corrupt-checkpoint",
        "agent",
    ]
    refused = events_of(tmp_path / "run", "checkpoint-rejected")
    if refused:
        # A rank that comes late is told of the older checkpoint at once.
        assert {event["rank"] for event in refused} <= {0, 1}
        assert {event["directory"].rpartition("/")[2] for event in refused} == {"step-00000008"}
    else:  # the coordinator had not yet verified it, and was first
        (damaged,) = events_of(tmp_path / "run", "checkpoint-corrupt")
        assert damaged["step"] == 8


def test_a_nan_is_injected_in_the_very_step(chaos, tmp_path):
    with pytest.raises(NonFiniteError):
        chaos("nan:step=7,rank=1")
    (fault,) = events_of(tmp_path / "run", "fault-injected")
    assert (fault["kind"], fault["rank"], fault["step"]) == ("nan", 1, 7)
    assert metrics_of(tmp_path / "run")[-1]["step"] == 7


@pytest.mark.soak
@pytest.mark.parametrize("flag", sampled(["nan", "flip"], 1))
def test_wrong_bits_are_recomputed_by_another_worker(chaos, reference, tmp_path, flag):
    result, injector = chaos(f"{flag}:step=7,rank=1", non_finite="recompute")
    assert result["weights_sha256"] == reference(KEYS["epochs"])
    assert [injected.step for injected in injector.injected] == [7]
    assert [event["rank"] for event in events_of(tmp_path / "run", "worker-exited")] == [1]


@pytest.mark.soak
def test_a_step_with_a_nan_can_be_left_out(chaos, tmp_path):
    result, _ = chaos("nan:step=7,rank=1", non_finite="skip")
    assert result["steps"] == STEPS
    skipped = [line["step"] for line in metrics_of(tmp_path / "run") if line.get("skipped")]
    assert skipped == [8]


@pytest.mark.soak
def test_a_flipped_bit_counts_as_not_finite(chaos, tmp_path):
    with pytest.raises(NonFiniteError):
        chaos("flip:step=7,rank=0")
    (fault,) = events_of(tmp_path / "run", "fault-injected")
    assert (fault["kind"], fault["step"]) == ("flip", 7)


@pytest.mark.soak
def test_many_faults_are_injected_once_each_though_one_kills_the_agent(chaos, reference):
    flags = ["agent:step=3", "exit:step=6,rank=1", "kill:step=6,rank=0", "raise:step=20,rank=0",
             "kill:after_s=0", "exit:step=29,rank=0"]  # fmt: skip
    result, injector = chaos(*flags, restarts={"limit": 99})
    assert result["weights_sha256"] == reference(KEYS["epochs"])
    assert injector.missed == []
    assert sorted(injected.fault.kind for injected in injector.injected) == sorted(
        flag.partition(":")[0] for flag in flags
    )


@pytest.mark.soak
def test_a_resumed_run_gets_faults_in_the_steps_that_are_left(chaos, reference, tmp_path):
    with pytest.raises(NonFiniteError):
        chaos("nan:step=7,rank=1")
    flags = ["exit:rank=0", "exit:rank=1", "slow:seconds=0.01"]
    result, injector = chaos(*flags, resume=True)
    assert result["weights_sha256"] == reference(KEYS["epochs"])
    assert injector.missed == []
    assert [injected.step for injected in injector.injected] == [
        s.fault.step for s in injector.injected
    ]
    drawn = planned_of(*flags).drawn(KEYS["workers"], range(4, STEPS))
    assert [injected.fault for injected in injector.injected] == drawn


@pytest.mark.soak
def test_a_due_fault_does_not_wait_for_an_earlier_one_in_the_plan(chaos):
    later, soon = "exit:step=70,rank=1", "exit:after_s=0.05,rank=1"
    _, injector = chaos(later, soon, epochs=12)
    assert [injected.fault.step for injected in injector.injected] == [None, 70]
    assert injector.injected[0].step < injector.injected[1].step == 70


@pytest.mark.soak
def test_the_same_seed_gives_the_same_faults(chaos, reference):
    found = []
    for name in ("first", "second"):
        result, injector = chaos(name=name, seed=5, num_random=2)
        assert result["weights_sha256"] == reference(KEYS["epochs"])
        assert injector.missed == []
        found.append(sorted(str(injected.fault) for injected in injector.injected))
    assert found[0] == found[1]


@pytest.mark.soak
def test_faults_are_injected_with_sync_ddp_too(chaos, train):
    result, injector = chaos("raise:step=5,rank=1", "kill:step=12,rank=0", sync="ddp")
    assert injector.missed == []
    assert result["weights_sha256"] == train(sync="ddp", **KEYS)["weights_sha256"]


@pytest.mark.parametrize(
    ("flag", "reason"),
    sampled(
        [
            ("kill:step=99", "the run has no more than 30 steps"),
            ("exit:step=99", "the run has no more than 30 steps"),
            ("kill:after_s=600", "the run ended before that"),
            ("exit:after_s=600", "the run ended before that"),
            ("exit:step=30,rank=1", "rank 1 began no step after that"),
        ],
        4,
    ),
)
def test_a_fault_that_was_missed_is_reported_with_the_reason(chaos, tmp_path, flag, reason):
    result, injector = chaos(flag)
    assert result["steps"] == STEPS
    assert [missed.reason for missed in injector.missed] == [reason]
    assert injector.injected == []
    assert events_of(tmp_path / "run", "fault-injected") == []


@pytest.mark.soak
def test_a_fault_that_waits_for_another_says_so(chaos):
    _, injector = chaos("exit:step=30,rank=1", "exit:step=30,rank=1")
    assert [missed.reason for missed in injector.missed] == [
        "rank 1 began no step after that",
        "another exit was still pending for rank 1",
    ]


@pytest.mark.soak
def test_a_full_disk_at_the_end_is_the_error_of_the_run(chaos, tmp_path):
    with pytest.raises(CheckpointError, match="the checkpoint of step 30 could not be written"):
        chaos("disk-full:step=29,rank=0")
    assert len(events_of(tmp_path / "run", "fault-injected")) == 1


@pytest.mark.soak
def test_an_error_of_the_injector_is_raised_once_the_run_has_ended(train, tmp_path):
    injector = FaultInjector(planned_of("kill:step=5"), load.check({**SMALL, **KEYS}, where="test"))
    run_dir, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    failed = pytest.raises(
        HoldfastError, match=r"fault injection failed: .*elsewhere.*; the run continued"
    )
    with failed, injector.running(elsewhere):  # is not there
        result = train(run_dir=run_dir, **KEYS)
    assert result["steps"] == STEPS


@pytest.mark.soak
def test_a_run_whose_injector_fails_keeps_its_result(forks, tmp_path):
    job = load.check({**SMALL, "epochs": 1}, where="test")
    injector = FaultInjector(planned_of("kill:step=5"), job)
    options = LaunchOptions(forks=forks)
    elsewhere = Attendance(sidecar=lambda run_dir: injector.running(run_dir / "elsewhere"))
    with pytest.raises(HoldfastError, match="fault injection failed"):
        run_job(job, options, run_dir=tmp_path / "run", resume=False, attendance=elsewhere)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "finished"


def test_a_run_that_is_over_gets_no_faults(train, tmp_path):
    train(run_dir=tmp_path / "run")
    with pytest.raises(JobError, match="no run is in progress in"):
        Target.under_way(tmp_path / "run")
