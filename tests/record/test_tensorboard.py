"""TensorBoard reads what a sender has written, each value once, whatever ended the sender."""

import os

import pytest

from conftest import Library
from holdfast.job import load
from holdfast.rundir.json_lines import JsonLines
from holdfast.rundir.run_directory import RunDirectory
from holdfast.sinks.trackers.sender import deliver
from holdfast.sinks.trackers.tracker_sink import senders

event_accumulator = Library("tensorboard.backend.event_processing.event_accumulator")

pytestmark = pytest.mark.slow


@pytest.fixture
def a_run(tmp_path):
    """The directory of a run, with its job."""
    job = load.check({"name": "points", "task": "x.py:y", "trackers": ["tensorboard"]}, "test")
    with RunDirectory(tmp_path / "run", job, resume=False) as directory:
        yield directory


def add(run, steps):
    with JsonLines(run.path / "metrics.jsonl") as file:
        for step in steps:
            file.write(step=step, loss=1 / step, samples=20, seconds=0.5, time_unix_s=100.0 + step)


def deliver_all(run):
    chosen, _ = senders(run.job, run.path, {})
    for each in chosen:
        each.start()
    assert deliver(chosen, lambda _: False) == []


def shown(run):
    """Step and time of each loss as TensorBoard shows them, and the texts."""
    board = event_accumulator.EventAccumulator(str(run.path / "tensorboard"), {"scalars": 0})
    board.Reload()
    text = board.Tensors("job")[0].tensor_proto.string_val[0].decode()
    return [(each.step, each.wall_time) for each in board.Scalars("train/loss")], text


def written(steps):
    return [(step, 100.0 + step) for step in steps]


def test_values_and_the_job_are_shown_and_continued(a_run):
    add(a_run, range(1, 9))
    deliver_all(a_run)
    losses, text = shown(a_run)
    assert losses == written(range(1, 9))
    assert "name: points" in text
    add(a_run, range(9, 12))
    deliver_all(a_run)
    assert shown(a_run)[0] == written(range(1, 12))


def test_what_was_written_but_not_acknowledged_is_there_once(a_run):
    add(a_run, range(1, 5))
    deliver_all(a_run)
    file = next((a_run.path / "tensorboard").iterdir())
    kept = a_run.path / "trackers" / "tensorboard.json"
    before = kept.read_bytes()
    add(a_run, range(5, 9))
    deliver_all(a_run)
    kept.write_bytes(before)  # as if the command had been killed before it was stored
    with file.open("ab") as more:
        more.write(b"torn")
    deliver_all(a_run)
    assert shown(a_run)[0] == written(range(1, 9))


def test_a_file_that_was_removed_or_cut_off_is_written_again(a_run):
    add(a_run, range(1, 5))
    deliver_all(a_run)
    file = next((a_run.path / "tensorboard").iterdir())
    os.truncate(file, file.stat().st_size - 10)
    deliver_all(a_run)
    assert shown(a_run)[0] == written(range(1, 5))
    file.unlink()
    deliver_all(a_run)
    assert shown(a_run)[0] == written(range(1, 5))
