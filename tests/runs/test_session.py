"""What user code may do, and what it is told when it does something else."""

import json
import os
import shutil
import threading

import pytest

from conftest import FAILING_TASKS, TASKS, back_to, events_of, metrics_of, result_of, sampled
from holdfast.errors import (
    CheckpointError,
    HoldfastError,
    JobError,
    NonFiniteError,
    WorkerFailed,
)
from holdfast.job import load
from holdfast.rundir.run_directory import RunDirectory
from holdfast.runs.controls import Controls
from holdfast.runs.run import LaunchOptions, run

pytestmark = pytest.mark.slow


def own(task, **keys):
    return {"task": f"{TASKS}:{task}", "batch": 20, "shards": 5, "workers": 2, **keys}


SAVED = {"workers": 2, "checkpoint": {"every_steps": 4, "keep": 3}}
COUNTED = own("own_loop", checkpoint={"every_steps": 4, "keep": 9})
"""Its task counts the steps in the state of its session."""


def failing(task, **keys):
    return own(task, **keys) | {"task": f"{FAILING_TASKS}:{task}"}


def test_logged_values_and_evaluations_are_kept(once):
    run = once(**COUNTED)
    result, lines = result_of(run), metrics_of(run)
    assert [line["step"] for line in lines] == list(range(1, 16))
    assert all(0 <= line["logged"]["accuracy"] <= 1 for line in lines)
    assert result["metrics"]["points_right"] > 0.8
    assert result["loss"] == lines[-1]["loss"] < lines[0]["loss"]


@pytest.mark.parametrize(
    ("task", "error", "message"),
    sampled(
        [
            ("exploding", NonFiniteError, r"the gradient of 0.weight, .* in step 4 is not finite"),
            ("twice", JobError, "session.backward was called twice for one shard"),
            ("bare_backward", JobError, r"call session.backward\(loss\) instead of loss.backward"),
            ("no_backward", JobError, r"no shard of step 1 called session.backward"),
            ("no_attach", JobError, "call session.attach"),
            (
                "leaving_early",
                JobError,
                "rank 0 is summing the gradient of step 3; rank 1 is at the end",
            ),
            ("different_weights", JobError, "rank 0 and rank 1 have different weights"),
            ("different_models", JobError, "rank 0 and rank 1 have different models"),
            ("unequal_logs", JobError, "logged different names"),
            ("tuple_state", JobError, "session.state must hold plain JSON values"),
            ("long_last_words", WorkerFailed, "raised ValueError: xxx"),
            ("bad_state", JobError, "session.state must hold plain JSON values"),
            ("exiting", WorkerFailed, "rank 1 raised SystemExit"),
            ("dying", WorkerFailed, "rank 1 was killed by SIGKILL"),
            ("nothing_there", JobError, "has no class or function nothing_there"),
        ],
        6,
        13,
    ),
)
def test_a_fault_ends_the_run_with_its_name(train, task, error, message):
    batch = {"batch": 18} if task == "unequal_logs" else {}
    with pytest.raises(error, match=message) as caught:
        train(**failing(task, **batch))
    assert type(caught.value) is error


@pytest.mark.soak
def test_a_long_gradient_is_clipped_unless_float32_cannot_hold_its_square(train):
    keys = own("huge", clip_norm=1.0)
    assert train(**keys, params={"factor": 1e15})["status"] == "finished"
    with pytest.raises(NonFiniteError, match="the gradient of weight, bias in step 1 is not"):
        train(**keys, params={"factor": 1e25})


def test_only_the_root_cause_is_named(train, tmp_path):
    with pytest.raises(WorkerFailed) as caught:
        train(run_dir=tmp_path / "run", **failing("raising", workers=4))
    assert caught.value.rank == 1
    assert "the data of step 2 are odd" in caught.value.__cause__.text
    others = [(tmp_path / "run" / "logs" / f"rank-{rank}.log").read_text() for rank in (0, 2, 3)]
    assert others == ["", "", ""]
    assert events_of(tmp_path / "run")[-1]["event"] == "run-failed"


def test_a_run_that_fails_in_a_checkpoint_leaves_the_one_before_and_no_half_of_one(train, tmp_path):
    root = tmp_path / "run" / "checkpoints"
    keys = failing("dying_in_a_checkpoint", params={"checkpoints": str(root)}, on_failure="stop")
    with pytest.raises(WorkerFailed, match="rank 1 was killed by SIGKILL"):
        train(run_dir=tmp_path / "run", checkpoint={"every_steps": 3}, **keys)
    assert sorted(path.name for path in root.iterdir()) == ["latest", "step-00000003"]


def test_a_stop_ends_the_step_saves_and_can_be_resumed(train, tmp_path):
    controls = Controls()

    def watch(step):
        controls.stop = controls.stop or step > 5

    result = train(run_dir=tmp_path / "run", controls=controls, watch=watch, **own("eternal"))
    assert result["status"] == "stopped"
    assert result["steps"] > 5
    saved = events_of(tmp_path / "run")
    assert {"checkpoint-committed", "stop-requested"} <= {event["event"] for event in saved}

    again = Controls(stop=True)
    second = train(run_dir=tmp_path / "run", resume=True, controls=again, **own("eternal"))
    assert second["steps"] >= result["steps"]


def test_an_abort_ends_the_run_at_once(train):
    controls = Controls()

    def watch(step):
        controls.abort = step > 5

    with pytest.raises(Exception, match="the run was aborted"):
        train(controls=controls, watch=watch, **own("eternal"))


def test_a_stop_that_a_step_outlasts_says_so(train):
    controls = Controls()

    def watch(step):
        controls.stop = step == 2

    with pytest.raises(HoldfastError, match="did not end their step within 1 s of being asked"):
        train(controls=controls, watch=watch, timeout_s=1, **failing("stuck", workers=1))


@pytest.mark.soak
def test_an_import_that_hangs_can_be_aborted(tmp_path):
    task, reached = tmp_path / "hanging.py", tmp_path / "reached"
    os.mkfifo(reached)
    task.write_text(f"open({str(reached)!r}, 'w').write('x')\nopen({str(reached)!r}).read()\n")
    job = load.check({"task": f"{task}:main"}, where="test")
    controls = Controls()

    def abort():
        reached.read_text()
        controls.abort = True

    threading.Thread(target=abort).start()
    with (
        RunDirectory(tmp_path / "run", job, resume=False) as directory,
        pytest.raises(HoldfastError, match=r"aborted while .* importing .*hanging.py:main"),
    ):
        run(directory, LaunchOptions(controls=controls))


@pytest.mark.soak
def test_a_process_that_a_task_forks_ends_when_it_is_told_to(train):
    assert train(**own("parent_of_a_child", workers=1))["status"] == "finished"


def test_what_user_code_keeps_comes_back_on_resume(train, once, tmp_path):
    def kept():
        newest = max((tmp_path / "run" / "checkpoints").glob("step-*"))
        return json.loads((newest / "manifest.json").read_text())["state"]

    shutil.copytree(once(**COUNTED), tmp_path / "run")
    assert kept() == {"seen": 15}
    back_to(tmp_path / "run", 4)
    assert kept() == {"seen": 4}
    train(run_dir=tmp_path / "run", resume=True, **COUNTED)
    assert kept() == {"seen": 15}


def test_a_run_with_no_good_checkpoint_says_so_and_loses_nothing(train, once, tmp_path):
    shutil.copytree(once(**SAVED), tmp_path / "run")
    parts = list((tmp_path / "run" / "checkpoints").glob("step-*/*.safetensors"))
    for part in parts:
        part.write_bytes(part.read_bytes()[:-1])
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"no checkpoint under .* can be used"):
            train(run_dir=tmp_path / "run", resume=True, **SAVED)
    assert all(part.exists() for part in parts)


def test_a_damaged_checkpoint_is_skipped_by_all_workers_and_the_weights_are_the_same(
    train, once, tmp_path
):
    shutil.copytree(once(**SAVED), tmp_path / "run")
    root = tmp_path / "run" / "checkpoints"
    assert sorted(path.name for path in root.glob("step-*")) == [
        "step-00000004", "step-00000008", "step-00000012",
    ]  # fmt: skip
    for name in ("step-00000012", "step-00000008"):
        path = root / name / "part-0-of-1.safetensors"
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    resumed = train(run_dir=tmp_path / "run", resume=True, **SAVED)
    assert resumed["weights_sha256"] == result_of(once(**SAVED))["weights_sha256"]
    refused = [e["directory"] for e in events_of(tmp_path / "run") if "rejected" in e["event"]]
    assert {path.rpartition("-")[2] for path in refused} == {"00000012", "00000008"}
    assert (root / "step-00000012.rejected-1").is_dir()
    assert (root / "step-00000012" / "manifest.json").exists()


@pytest.mark.soak
def test_values_that_are_no_numbers_are_kept_as_they_are(train, tmp_path):
    keys = own("not_numbers", checkpoint={"every_steps": 3, "keep": 9})
    whole = train(run_dir=tmp_path / "run", **keys)
    assert whole["metrics"]["odd"] != whole["metrics"]["odd"]
    back_to(tmp_path / "run", 9)
    resumed = train(run_dir=tmp_path / "run", resume=True, **keys)
    assert resumed["weights_sha256"] == whole["weights_sha256"]


@pytest.mark.soak
def test_an_evaluation_leaves_frozen_parts_frozen(train):
    assert train(**own("frozen"))["metrics"]["size"] > 0


def test_a_run_is_not_resumed_on_other_data(train, tmp_path):
    keys = own("growing", params={"size": str(tmp_path / "size")})
    (tmp_path / "size").write_text("60")
    train(run_dir=tmp_path / "run", **keys)
    (tmp_path / "size").write_text("80")
    with pytest.raises(JobError, match=r"the run began with num_samples=60 .* and now has 80"):
        train(run_dir=tmp_path / "run", resume=True, **keys)


@pytest.mark.soak
@pytest.mark.parametrize("workers", sampled([1, 3], 1))
def test_a_run_resumed_with_other_workers_ends_the_same(train, tmp_path, workers):
    keys = {"checkpoint": {"every_steps": 5, "keep": 9}}
    whole = train(run_dir=tmp_path / "run", workers=2, **keys)["weights_sha256"]
    back_to(tmp_path / "run", 5)
    resumed = train(run_dir=tmp_path / "run", resume=True, workers=workers, **keys)
    assert resumed["weights_sha256"] == whole
    steps = [line["step"] for line in metrics_of(tmp_path / "run") if "loss" in line]
    assert steps == list(range(1, 13))


@pytest.mark.soak
def test_an_optimizer_that_writes_to_its_gradients_does_not_write_to_those_of_others(train):
    digests = {train(**own("nesterov", workers=n))["weights_sha256"] for n in (1, 2, 3)}
    assert len(digests) == 1


def test_leaving_the_loop_keeps_nothing_of_the_current_step(train):
    left = [train(**own("leaving", params={"leave": 7}, workers=n)) for n in (1, 3)]
    assert [result["steps"] for result in left] == [7, 7]
    assert len({result["weights_sha256"] for result in left}) == 1


def test_an_evaluation_that_measures_nothing_is_refused(train):
    with pytest.raises(JobError, match="an evaluation measures means by name"):
        train(**failing("measures_nothing"))
