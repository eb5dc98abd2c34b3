"""Runs that train on a stream."""

from pathlib import Path

import pytest

from conftest import events_of
from holdfast.errors import JobError, WorkerFailed

pytestmark = pytest.mark.slow

TASKS = Path(__file__).with_name("stream_tasks.py")
JOB = {
    "data": None, "model": None, "schedule": {"name": "constant"},
    "clip_norm": None, "batch": 8, "shards": 4, "epochs": 1,
}  # fmt: skip


def test_a_run_that_resumes_within_an_epoch_uses_each_sample_once(train, tmp_path):
    mark = tmp_path / "mark"
    keys = {**JOB, "task": f"{TASKS}:same", "params": {"mark": str(mark)}}
    whole = train(**keys)
    assert whole["steps"] == 21
    mark.touch()
    keys |= {"checkpoint": {"every_steps": 4}, "on_failure": "stop"}  # 7 steps are an epoch
    with pytest.raises(WorkerFailed, match="as planned"):
        train(tmp_path / "run", workers=3, **keys)
    mark.unlink()
    resumed = train(tmp_path / "run", workers=2, resume=True, **keys)
    assert resumed["weights_sha256"] == whole["weights_sha256"]
    assert resumed["metrics"] == whole["metrics"]
    started = events_of(tmp_path / "run", "generation-started")
    assert [event["step"] for event in started] == [0, 8]


def test_a_replacement_that_reads_a_stream_again_is_a_donor_if_its_own_is_lost(train, tmp_path):
    keys = {**JOB, "task": f"{TASKS}:killed_twice", "params": {"folder": str(tmp_path)}}
    for name in "12345":  # one worker more than it takes, so nobody is killed
        (tmp_path / f"pid-{name}").write_text("0")
    whole = train(**keys)
    for path in tmp_path.glob("pid-*"):
        path.unlink()
    run = train(tmp_path / "run", workers=2, **keys)
    assert len(list(tmp_path.glob("pid-*"))) >= 4  # one may be ended while it starts
    assert run["weights_sha256"] == whole["weights_sha256"]
    started = events_of(tmp_path / "run", "generation-started")
    assert all(event["step"] == 40 for event in started[1:]), started


def test_a_stream_that_differs_between_workers_is_named(train):
    with pytest.raises(JobError, match=r"rank 0 and rank 1 read other samples after step 0: every"):
        train(**JOB, workers=2, task=f"{TASKS}:different")
