"""Code that runs on one worker only, and functions that hear of a run in the launching process."""

import os
from collections import Counter
from pathlib import Path

import pytest

from conftest import sampled
from holdfast.api.attended import Attendance
from holdfast.api.train import run_job
from holdfast.errors import JobError
from holdfast.job import load
from holdfast.runs.run import LaunchOptions

pytestmark = pytest.mark.slow

TASKS = Path(__file__).with_name("callback_tasks.py")
STEPS = 12


@pytest.fixture
def observed(forks, tmp_path):
    """Run a task: `observed(task, on_event, key=value, …) -> result`."""

    def run(task, on_event=None, resume=False, name="run", **keys):
        given = {"task": f"{TASKS}:{task}", "batch": 20, "shards": 4, "workers": 2, **keys}
        return run_job(
            load.check(given, where="test"),
            LaunchOptions(forks=forks),
            run_dir=tmp_path / name,
            resume=resume,
            attendance=Attendance(on_event=on_event),
        )

    return run


def calls(seen):
    """The calls of a main-only function: places, steps and processes."""
    lines = map(str.split, seen.read_text().splitlines())
    return [(place, int(step), int(pid)) for place, step, pid in lines]


def test_every_step_is_an_event_once_through_a_kill_of_the_main_worker(observed, tmp_path):
    seen, events, pids = tmp_path / "seen", [], set()

    def on_event(event):
        events.append(event)
        pids.add(os.getpid())

    params = {"seen": str(seen), "kill": 5, "in_loop": True}
    killed = observed("watched", on_event, params=params)
    assert pids == {os.getpid()}
    kinds = Counter(event.kind for event in events)
    assert [event.step for event in events if event.kind == "step"] == list(range(1, STEPS + 1))
    losses = [event.values["loss"] for event in events if event.kind == "step"]
    assert losses == killed.history["loss"]
    assert [e.values for e in events if e.kind == "evaluation"] == [
        {"accuracy": value} for value in killed.evaluations["accuracy"]
    ]
    assert (events[0].kind, events[-1].kind) == ("run-started", "run-ended")
    assert kinds["evaluation"] == 4
    assert kinds["recovery"] == kinds["run-ended"] == 1
    (recovery,) = [event for event in events if event.kind == "recovery"]
    assert "SIGKILL" in recovery.values["causes"][0]["what"]

    commits = [step for place, step, _ in calls(seen) if place == "commit"]
    assert set(commits) == set(range(1, STEPS + 1))
    assert len({pid for _, _, pid in calls(seen)}) == 2
    assert [place for place, _, _ in calls(seen)].count("after") == 1

    alone = observed("watched", name="alone", params=params | {"kill": None}, workers=1)
    assert alone.weights_sha256 == killed.weights_sha256
    assert alone.history["loss"] == losses


def test_steps_that_a_restart_computes_again_are_events_once(observed, tmp_path):
    params, events = {"seen": str(tmp_path / "seen"), "kill": 8}, []
    keys = {"params": params, "checkpoint": {"every_steps": 5}, "on_failure": "restart"}
    observed("watched", events.append, **keys)
    assert [event.step for event in events if event.kind == "step"] == list(range(1, STEPS + 1))
    (recovery,) = [event for event in events if event.kind == "recovery"]
    assert recovery.values["recomputed_steps"] == 3
    commits = [step for place, step, _ in calls(tmp_path / "seen") if place == "commit"]
    assert commits == [*range(1, 9), *range(6, STEPS + 1)]


@pytest.mark.parametrize("way", sampled(["stop", "exception"], 0))
def test_on_event_can_stop_a_run(observed, tmp_path, way):
    params, steps, later = {"seen": str(tmp_path / "seen")}, [], []

    def on_event(event):
        if event.kind == "step":
            steps.append(event.step)
            if way == "exception":
                raise OSError("the board is full")
            event.stop()

    if way == "stop":
        stopped = observed("watched", on_event, params=params)
        assert steps == list(range(1, stopped.steps + 1))
    else:
        with pytest.raises(OSError, match="the board is full") as raised:
            observed("watched", on_event, params=params)
        assert "on_event raised this for 'step'" in raised.value.__notes__[0]
        assert steps == [1]
    resumed = observed("watched", later.append, params=params, resume=True)
    assert resumed.history["step"] == list(range(1, STEPS + 1))
    told = [event.step for event in later if event.kind == "step"]
    assert told == list(range(STEPS + 1 - len(told), STEPS + 1))
    assert way == "exception" or steps + told == resumed.history["step"]


@pytest.mark.parametrize("workers", sampled([1, 2], 1))
@pytest.mark.parametrize(
    ("change", "message"),
    sampled(
        [
            ("state", r"session.state.mine .* was modified in a session.main_only function"),
            ("weights", r"0.weight was modified in a session.main_only function \(step 2\)"),
            ("rate", r"lr .* was modified in a session.main_only function"),
            ("evaluate", r"session.evaluate was called in a session.main_only function"),
            ("log", r"session.log was called in a session.main_only function"),
        ],
        1,
    ),
)
def test_a_main_only_function_must_not_change_the_run(observed, change, message, workers):
    with pytest.raises(JobError, match=message):
        observed("changing", params={"change": change}, workers=workers)
