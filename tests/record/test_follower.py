"""Sinks are told of each step once, and of none of an earlier attempt."""

import time

import pytest

from holdfast.job import load
from holdfast.record.follower import Follower
from holdfast.record.sink import Sink
from holdfast.rundir.json_lines import EventLog, JsonLines, forget_after
from holdfast.rundir.run_directory import EVENTS, METRICS, RunDirectory


class Steps(Sink):
    def __init__(self):
        self.seen = []

    def on_line(self, line):
        if "step" in line and "event" not in line:
            self.seen.append((line["step"], line["loss"]))


@pytest.fixture
def directory(tmp_path):
    job = load.check_script({"script": {"path": "train.py"}}, where="test")
    with RunDirectory(tmp_path / "run", job, resume=False) as made:
        yield made


def report(path, step, loss, at):
    forget_after(path, step - 1)
    with JsonLines(path) as file:
        file.write(step=step, loss=loss, samples=8, time_unix_s=at)


def test_a_script_that_goes_back_is_followed_from_there(directory):
    metrics = directory.path / METRICS
    for step in range(1, 6):
        report(metrics, step, 1.0, time.time() - 3600)
    steps = Steps()
    follower = Follower(directory, [steps])
    with EventLog(directory.path / EVENTS) as log:
        log.event("generation-started", number=1, members=[0], step=0, last_committed_step=0,
                  from_checkpoint=True)  # fmt: skip
    for step in (4, 5):
        report(metrics, step, 2.0, time.time())
    follower.poll()
    assert steps.seen == [(4, 2.0), (5, 2.0)]
    report(metrics, 5, 3.0, time.time())
    report(metrics, 6, 3.0, time.time())
    follower.poll()
    assert steps.seen[2:] == [(6, 3.0)]
