"""A run that lost workers gives the weights of one that did not, and no step is lost or doubled."""

import os
import random
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from faulty_tasks import marks

from conftest import FAILING_TASKS, TASKS, events_of, metrics_of, result_of, sampled
from holdfast.errors import WorkerFailed
from holdfast.runs.controls import Controls

pytestmark = pytest.mark.slow

FAULTY = {
    "task": f"{TASKS.parent / 'faulty_tasks.py'}:main",
    "batch": 20,
    "shards": 5,
    "workers": 2,
    "clip_norm": 0.3,
    "checkpoint": {"every_steps": 4},
}

A_STEP = [
    ("holdfast.worker.step.tree:TreeStepper.begin_shard", "before"),
    ("holdfast.worker.step.tree:TreeStepper.end_shard", "before"),
    ("holdfast.worker.step.tree:TreeStepper.end_shard", "after"),
    ("holdfast.collectives.exact:TreeReducer.publish", "after"),
    ("holdfast.collectives.exact:TreeReducer._stats_of", "after"),
    ("holdfast.collectives.exact:TreeReducer.reduced", "before"),
    ("holdfast.collectives.exact:TreeReducer.scale_gradient", "before"),
    ("holdfast.collectives.exact:TreeReducer.scale_gradient", "after"),
    ("holdfast.worker.step.tree:TreeStepper._apply", "before"),
    ("holdfast.worker.step.tree:TreeStepper._update", "after"),
    ("holdfast.worker.step.tree:commit_step", "before"),
    ("holdfast.worker.step.tree:commit_step", "after"),
]
BETWEEN_STEPS = [
    ("holdfast.worker.metrics:Metrics.step", "before"),
    ("holdfast.worker.metrics:Metrics.step", "after"),
    ("holdfast.worker.evaluation:Evaluator.evaluate", "before"),
    ("holdfast.worker.evaluation:_results", "before"),
    ("holdfast.worker.evaluation:Evaluator.evaluate", "after"),
    ("holdfast.worker.metrics:Metrics.evaluation", "before"),
    ("holdfast.worker.metrics:Metrics.evaluation", "after"),
    ("holdfast.worker.checkpoints.saver:CheckpointSaver.save", "before"),
    ("holdfast.worker.checkpoints.saver:CheckpointSaver._staged", "after"),
    ("holdfast.worker.checkpoints.saver:CheckpointSaver._await_result", "before"),
    ("holdfast.worker.checkpoints.saver:CheckpointSaver._await_result", "after"),
    ("holdfast.worker.membership.member:Member.finish", "before"),
    ("holdfast.worker.membership.member:Member.finish", "after"),
    ("holdfast.worker.main:result_of", "after"),
]
A_STEP_ON_DEVICES = [
    ("holdfast.worker.step.device:DeviceStepper.end_shard", "after"),
    ("holdfast.collectives.device_sums:DeviceSums.publish", "before"),
    ("holdfast.collectives.device_sums:DeviceSums.publish", "after"),
    ("holdfast.collectives.device_sums:DeviceSums.add_up", "before"),
    ("holdfast.collectives.device_sums:DeviceSums.add_up", "after"),
    ("holdfast.collectives.device_sums:DeviceSums.collect", "before"),
    ("holdfast.collectives.device_sums:DeviceSums.collect", "after"),
    ("holdfast.worker.step.device:DeviceStepper._update", "before"),
    ("holdfast.worker.step.device:DeviceStepper._update", "after"),
]
OUTSIDE_AN_UPDATE = [
    ("holdfast.worker.step.device:DeviceStepper.begin_shard", "before"),
    ("holdfast.worker.step.device:DeviceStepper.end_shard", "after"),
    ("holdfast.worker.step.shard_work:PartialSums.mean", "after"),
    ("holdfast.worker.metrics:Metrics.step", "before"),
    ("holdfast.worker.metrics:Metrics.step", "after"),
    ("holdfast.worker.evaluation:Evaluator.evaluate", "after"),
    ("holdfast.worker.checkpoints.saver:CheckpointSaver._staged", "before"),
    ("holdfast.worker.checkpoints.saver:CheckpointSaver._staged", "after"),
]
RECOVERY = [
    ("holdfast.worker.agent_link:AgentLink.await_resume_until", "before"),
    ("holdfast.worker.agent_link:AgentLink.await_resume_until", "after"),
    ("holdfast.worker.membership.attach:AttachedModels.allocate", "before"),
    ("holdfast.worker.membership.attach:AttachedModels.allocate", "after"),
    ("holdfast.worker.membership.state_transfer:StateTransfer.transfer", "before"),
    ("holdfast.worker.membership.state_transfer:StateTransfer.transfer", "after"),
    ("holdfast.worker.metrics:Metrics.set_writing", "before"),
    ("holdfast.worker.step.tree:TreeStepper.resume", "before"),
    ("holdfast.worker.step.tree:TreeStepper.resume", "after"),
]
GIVING = [
    ("holdfast.worker.membership.state_transfer:StateTransfer._header", "after"),
    ("holdfast.worker.membership.state_transfer:StateTransfer._stage", "after"),
]
TAKING = [
    ("holdfast.worker.membership.state_transfer:StateTransfer._take", "before"),
    ("holdfast.worker.membership.state_transfer:StateTransfer._take", "after"),
]
FIRST = {
    "at": "holdfast.worker.step.tree:TreeStepper._update",
    "when": "before",
    "rank": 0,
    "step": 2,
    "how": "kill",
}
"""A death at which the step in hand is decided, and nobody has committed it yet."""


@pytest.fixture
def whole(once):
    """Result of a fault-free run: `whole(key=value, …)`."""
    return lambda **keys: result_of(once(**keys))


@pytest.fixture
def inject(train, reference, tmp_path):
    """Run the faulty task and compare it with an fault-free run: `inject(faults, **keys)`."""

    def run(*faults, **keys):
        named = [{**fault, "mark": str(tmp_path / f"mark-{n}")} for n, fault in enumerate(faults)]
        result = train(run_dir=tmp_path / "run", **{**FAULTY, **keys}, params={"faults": named})
        assert result["weights_sha256"] == reference(**FAULTY, params={"faults": []})
        assert_each_step_once(tmp_path / "run", result["steps"])
        assert_only_struck_workers_ended(tmp_path / "run", named)
        return marks(named)

    return run


def assert_only_struck_workers_ended(run_dir, faults):
    """The survivors of a failure resume: weights alone would be the same if all had crashed."""
    lost = [e for e in events_of(run_dir) if e["event"] == "worker-exited" and e["unexpected"]]
    fatal = [fault for fault in faults if fault["how"] != "nap"]
    struck = [fault["rank"] for fault in fatal if Path(fault["mark"]).exists()]
    assert sorted(event["rank"] for event in lost) == sorted(struck)
    generations = [e for e in events_of(run_dir) if e["event"] == "generation-started"]
    assert len(generations) <= 1 + 2 * len(lost)  # a shrunk world grows once more


def assert_each_step_once(run_dir, steps):
    lines = metrics_of(run_dir)
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, steps + 1))
    measured = [line["step"] for line in lines if "evaluation" in line]
    assert measured == sorted(set(measured))


@pytest.mark.parametrize("rank", sampled([0, 1], 1))
@pytest.mark.parametrize(("at", "when"), sampled(A_STEP, 9))
def test_a_death_at_any_point_of_a_step_changes_nothing(inject, at, when, rank):
    assert inject({"at": at, "when": when, "rank": rank, "step": 2, "how": "kill"}) == [True]


@pytest.mark.parametrize("rank", sampled([0, 1], 1))
@pytest.mark.parametrize("exchange", ["mapped", "staged"])
@pytest.mark.parametrize(("at", "when"), sampled(A_STEP_ON_DEVICES, 6))
def test_a_death_within_an_exchange_of_devices_changes_nothing(inject, exchange, at, when, rank):
    fault = {"at": at, "when": when, "rank": rank, "step": 2, "how": "kill"}
    assert inject(fault, exchange=exchange, device="cpu") == [True]


@pytest.mark.parametrize("exchange", ["staged", "mapped"])  # one worker: staged is alone
@pytest.mark.parametrize(("at", "when"), sampled(OUTSIDE_AN_UPDATE, 1))
def test_a_lone_worker_that_dies_outside_its_update_loses_no_step(
    inject, tmp_path, exchange, at, when
):
    step = 5 if "evaluate" in at else 8 if "Saver" in at else 6
    fault = {"at": at, "when": when, "rank": 0, "step": step, "how": "kill"}
    assert inject(fault, workers=1, exchange=exchange, device="cpu") == [True]
    events = events_of(tmp_path / "run")
    _, second = (each for each in events if each["event"] == "generation-started")
    assert (second["from_checkpoint"], second["step"]) == (False, second["last_committed_step"])
    assert second["step"] >= step


@pytest.mark.parametrize("workers", sampled([1, 2], 0))
def test_a_run_that_loses_all_workers_in_an_update_resumes_from_memory(inject, tmp_path, workers):
    stepper = "device:DeviceStepper" if workers == 1 else "tree:TreeStepper"
    at = f"holdfast.worker.step.{stepper}._update"
    faults = [
        {"at": at, "when": "after", "rank": rank, "step": 9, "how": "kill"}
        for rank in range(workers)
    ]
    saving = {"every_steps": 0, "memory": "always"}
    assert inject(*faults, workers=workers, checkpoint=saving) == [True] * workers
    events = events_of(tmp_path / "run")
    resumed = [event for event in events if event["event"] == "generation-started"][1:]
    assert any(event["from_checkpoint"] and event["step"] > 0 for event in resumed)


@pytest.mark.parametrize("rank", sampled([0, 1], 0))
@pytest.mark.parametrize(("at", "when"), sampled(BETWEEN_STEPS, 11))
def test_a_death_between_steps_changes_nothing(inject, at, when, rank):
    at_end = "Member" in at or "result" in at
    step = 15 if at_end else 8 if "part" in at or "commit" in at or "save" in at else 5
    assert inject({"at": at, "when": when, "rank": rank, "step": step, "how": "kill"}) == [True]


@pytest.mark.parametrize(("at", "when"), sampled([*RECOVERY, *TAKING], 10))
def test_a_second_death_of_the_replacement_changes_nothing(inject, at, when):
    transferred = when == "after" and at.endswith("StateTransfer.transfer")
    step = 3 if transferred or "set_writing" in at or "TreeStepper.resume" in at else 0
    second = {"at": at, "when": when, "rank": 0, "step": step, "generation": 2, "how": "kill"}
    assert inject(FIRST, second) == [True, True]


@pytest.mark.parametrize(("at", "when"), sampled([*RECOVERY, *GIVING], 5))
def test_a_death_of_the_last_worker_with_the_state_restores_the_checkpoint(inject, at, when):
    second = {"at": at, "when": when, "rank": 1, "until": 3, "generation": 2, "how": "kill"}
    assert inject(FIRST, second) == [True, True]


@pytest.mark.soak
def test_a_worker_that_lost_its_initial_values_is_replaced_and_not_counted_as_a_failure(inject):
    at = "holdfast.worker.membership.state_transfer:StateTransfer._header"
    second = {"at": at, "when": "after", "rank": 1, "until": 3, "generation": 2, "how": "kill"}
    assert inject(FIRST, second, restarts={"limit": 2}) == [True, True]


@pytest.mark.soak
@pytest.mark.parametrize(("at", "when"), sampled([*RECOVERY, *GIVING], 10))
def test_a_death_of_a_donor_among_others_changes_nothing(inject, at, when):
    second = {"at": at, "when": when, "rank": 1, "until": 3, "generation": 2, "how": "kill"}
    assert inject(FIRST, second, workers=4) == [True, True]


@pytest.mark.soak
@pytest.mark.parametrize("on_failure", sampled(["replace", "shrink"], 1))
@pytest.mark.parametrize(("seed", "workers"), sampled([(1, 2), (2, 3), (3, 5)], 1))
def test_random_deaths_change_nothing(train, reference, tmp_path, seed, workers, on_failure):
    chance = random.Random(seed)
    keys = {"workers": workers, "on_failure": on_failure, "restarts": {"limit": 99}}
    killed = due = 0

    def kill(step):
        nonlocal killed, due
        started = [e for e in events_of(tmp_path / "run") if e["event"] == "worker-started"]
        ended = [e["pid"] for e in events_of(tmp_path / "run") if e["event"] == "worker-exited"]
        living = [event["pid"] for event in started if event["pid"] not in ended]
        if living and step > due and killed < 15:
            due = step + chance.randrange(15)
            with suppress(ProcessLookupError):
                os.kill(chance.choice(living), signal.SIGKILL)
                killed += 1

    result = train(run_dir=tmp_path / "run", epochs=12, watch=kill, **keys)
    assert result["weights_sha256"] == reference(epochs=12)
    assert_each_step_once(tmp_path / "run", result["steps"])
    assert killed > 3


@pytest.mark.parametrize("when", sampled(["before", "after"], 0))
@pytest.mark.parametrize(("rank", "step"), sampled([(0, 5), (2, 5), (1, 0), (1, 10)], 2))
@pytest.mark.parametrize("keys", sampled([{}, {"on_failure": "shrink"}], 1))
def test_a_death_in_an_evaluation_of_ones_own_changes_nothing(
    train, whole, tmp_path, when, rank, step, keys
):
    fault = {"at": "holdfast.worker.evaluation:Evaluator.evaluate", "rank": rank, "step": step}
    named = {**fault, "when": when, "how": "kill", "mark": str(tmp_path / "mark")}
    task = FAULTY["task"].replace(":main", ":measuring")
    same = {**FAULTY, "task": task}
    broken = train(**{**same, **keys, "workers": 3}, params={"faults": [named]})
    assert marks([named]) == [True]
    untouched = whole(**same, params={"faults": []})
    assert broken["weights_sha256"] == untouched["weights_sha256"]
    assert broken["metrics"] == untouched["metrics"]


@pytest.mark.soak
def test_a_replacement_takes_over_what_was_measured_before_the_loop(train, tmp_path):
    fault = {
        "at": "holdfast.worker.step.tree:TreeStepper._update",
        "rank": 1,
        "step": 3,
        "how": "kill",
    }
    named = {**fault, "when": "after", "mark": str(tmp_path / "mark")}
    task = FAULTY["task"].replace(":main", ":measuring")
    keys = {**FAULTY, "task": task, "workers": 3}
    whole, broken = (train(**keys, params={"faults": faults}) for faults in ([], [named]))
    assert marks([named]) == [True]
    assert broken["weights_sha256"] == whole["weights_sha256"]


@pytest.mark.soak
def test_a_fast_run_survives_a_death_in_an_evaluation(train, tmp_path):
    fault = {"at": "holdfast.worker.evaluation:Evaluator.evaluate", "rank": 2, "step": 5}
    named = {**fault, "when": "before", "how": "kill", "mark": str(tmp_path / "mark")}
    task = FAULTY["task"].replace(":main", ":measuring")
    keys = {**FAULTY, "task": task, "workers": 3, "numerics": "fast", "on_failure": "shrink"}
    assert train(**keys, params={"faults": [named]})["steps"] == 10
    assert marks([named]) == [True]


def test_a_run_that_was_over_already_survives_a_death_when_it_is_resumed(train, tmp_path):
    fault = {
        "at": "holdfast.worker.membership.member:Member.finish",
        "when": "before",
        "how": "kill",
    }
    named = {**fault, "rank": 1, "step": 15, "mark": str(tmp_path / "mark")}
    (tmp_path / "mark").touch()  # not yet
    keys = {**FAULTY, "params": {"faults": [named]}}
    whole = train(run_dir=tmp_path / "run", **keys)
    (tmp_path / "mark").unlink()
    again = train(run_dir=tmp_path / "run", resume=True, **keys)
    assert marks([named]) == [True]
    assert again["weights_sha256"] == whole["weights_sha256"]


@pytest.mark.soak
def test_an_exception_that_does_not_come_again_is_survived(inject):
    fault = {
        "at": "holdfast.worker.step.tree:TreeStepper.begin_shard",
        "when": "before",
        "how": "raise",
    }
    assert inject({**fault, "rank": 1, "step": 3}) == [True]


STOPS = [
    ("holdfast.worker.step.tree:TreeStepper.begin_shard", 2),
    ("holdfast.worker.step.tree:TreeStepper._update", 2),
    ("holdfast.worker.evaluation:_results", 5),
    ("holdfast.worker.checkpoints.saver:CheckpointSaver._staged", 8),
    ("holdfast.worker.membership.member:Member.finish", 15),
]


@pytest.mark.parametrize("rank", sampled([0, 1], 1))
@pytest.mark.parametrize(("at", "step"), sampled(STOPS, 1))
def test_a_stopped_worker_is_replaced_wherever_it_was(inject, tmp_path, at, step, rank):
    fault = {"at": at, "when": "before", "rank": rank, "step": step, "how": "stop"}
    assert inject(fault) == [True]
    hung = [event for event in events_of(tmp_path / "run") if event["event"] == "worker-hung"]
    assert [event["rank"] for event in hung] == [rank]
    assert hung[0]["reason"].startswith("was stopped for ")


def test_code_that_does_nothing_for_too_long_counts_as_hung(inject, tmp_path):
    fault = {
        "at": "holdfast.worker.step.tree:TreeStepper.backward",
        "when": "before",
        "how": "sleep",
    }
    assert inject({**fault, "rank": 1, "step": 3}, hang_timeout_s=1.5) == [True]
    hung = [event for event in events_of(tmp_path / "run") if event["event"] == "worker-hung"]
    assert [event["rank"] for event in hung] == [1]


def test_a_slow_evaluation_and_a_long_wait_for_data_do_not_count_as_hung(inject, tmp_path):
    slow = {"when": "before", "how": "nap", "rank": 1}
    evaluation = {**slow, "at": "holdfast.worker.evaluation:Evaluator._measure", "step": 5}
    data = {**slow, "at": "holdfast.data.loading.loader:Loader.take", "step": 3}
    assert inject(evaluation, data, hang_timeout_s=0.5) == [True, True]
    assert not [event for event in events_of(tmp_path / "run") if event["event"] == "worker-hung"]


@pytest.mark.soak
def test_an_error_is_reported_although_a_child_of_the_worker_survives(train, tmp_path):
    keys = {"task": f"{FAILING_TASKS}:survived_by_a_child", "batch": 20, "workers": 2, "shards": 2}
    with pytest.raises(WorkerFailed, match="rank 1 raised ValueError: my child lives on"):
        train(**keys, on_failure="stop", params={"pid": str(tmp_path / "pid")})
    with suppress(ProcessLookupError):  # the fork server may have ended it already
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


@pytest.mark.full
def test_a_world_that_has_shrunk_grows_again(train, tmp_path):
    fault = {
        "at": "holdfast.worker.step.tree:TreeStepper.begin_shard",
        "when": "before",
        "how": "kill",
    }
    params = {"faults": [{**fault, "rank": 1, "step": 3, "mark": str(tmp_path / "mark")}]}
    task = FAULTY["task"].replace(":main", ":endless")
    keys = {**FAULTY, "task": task, "workers": 3, "on_failure": "shrink", "params": params}

    def sizes():
        events = events_of(tmp_path / "run")
        return [len(event["members"]) for event in events if event["event"] == "generation-started"]

    def watch(_):
        controls.stop = len(sizes()) == 3

    controls = Controls()
    train(run_dir=tmp_path / "run", controls=controls, watch=watch, **keys)
    assert sizes() == [3, 2, 3]


def test_a_worker_that_dies_repeatedly_ends_the_run_with_its_name(train):
    with pytest.raises(
        WorkerFailed, match=r"rank \d was killed by SIGKILL; restart budget exhausted: more than 3"
    ):
        train(task=f"{FAILING_TASKS}:vanishing", workers=2, shards=2, restarts={"limit": 3})
