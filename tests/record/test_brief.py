"""How a run is doing by the ends of its files, as the list of runs has it."""

import fcntl
import os

import pytest

from holdfast.record.run_record import RunRecord
from holdfast.record.views.brief import NEAR_BYTES, brief_of
from recorded_run import JOB, LAST_STEP, NOW, STARTED, events, step, write, write_run


@pytest.fixture
def path(tmp_path):
    write_run(tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def held(path):
    """The run, whose directory a process holds."""
    fd = os.open(path / ".lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    yield path
    os.close(fd)


KILLED = {"time_unix_s": 1025.5, "event": "worker-exited", "rank": 0, "status": -9,
          "cause": "was killed by SIGKILL", "error": "", "unexpected": True}  # fmt: skip
ENDED = {"time_unix_s": 1025.5, "event": "run-ended", "status": "finished", "steps": LAST_STEP}


@pytest.mark.parametrize(
    ("more", "now", "state"),
    [([], NOW, "running"), ([KILLED], NOW, "recovering"), ([], NOW + 60, "stalled"),
     ([ENDED], NOW, "finished")],
)  # fmt: skip
def test_the_state_is_that_of_the_whole_record(held, more, now, state):
    write(held / "events.jsonl", [*events(), *more])
    brief = brief_of(held, now)
    assert brief.state == RunRecord(held).state(now)
    assert (brief.state.name, brief.step) == (state, LAST_STEP)
    assert brief.last_event == [*events(), *more][-1]


def test_a_run_whose_process_is_gone_has_failed(path):
    brief = brief_of(path, NOW)
    assert brief.state.name == "failed"
    assert "ended without writing an event" in brief.state.reason


def test_a_pause_is_no_stall_if_a_step_long_ago_took_as_long(held):
    slow = {**step(1), "seconds": 100.0}
    lines = [slow, *(step(number) for number in range(2, 1000))]
    write(held / "metrics.jsonl", lines)
    assert (held / "metrics.jsonl").stat().st_size > 2 * NEAR_BYTES
    last = lines[-1]["time_unix_s"]
    write(held / "events.jsonl", events()[:4])
    assert brief_of(held, last + 200).state.name == "running"
    assert brief_of(held, last + 400).state.name == "stalled"


def test_a_script_runs_once_its_workers_do(held):
    (held / "metrics.jsonl").unlink()
    (held / "job.yaml").write_text("script: {path: train.py}\nworkers: 2\n")
    assert brief_of(held, NOW + 1000).state.name == "running"
    assert brief_of(held, NOW + 1000).state == RunRecord(held).state(NOW + 1000)
    write(held / "events.jsonl", events()[:3])
    assert brief_of(held, NOW).state.name == "starting"
    (held / "job.yaml").write_text(JOB)
    assert brief_of(held, STARTED + 5).state.name == "starting"


def test_a_directory_without_a_run_is_starting(tmp_path):
    brief = brief_of(tmp_path, NOW)
    assert (brief.state.name, brief.step, brief.last_event) == ("starting", 0, None)
