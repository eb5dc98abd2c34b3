"""What trackers read of a run's files: each value once, whatever happens to the files meanwhile."""

import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.sinks.trackers import spool
from holdfast.sinks.trackers.spool import BATCH_BYTES, SpoolCursor
from holdfast.sinks.trackers.tracker import TrackedJob

JOB = TrackedJob(name="job", params={}, text="", tokens_per_sample=None)


def step_line(step, **fields):
    line = {"step": step, "loss": 1 / step, "norm": None, "lr": 0.1, "samples": 20}
    return {**line, "seconds": 0.5, "time_unix_s": 100.0 + step, **fields}


def append(run_dir, *lines, name="metrics.jsonl"):
    with (run_dir / name).open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def read_all(run_dir, cursor, job=JOB):
    """Every point after a cursor, how many batches that took, and the cursor after it."""
    points, batches = [], 0
    while True:
        batch, following = spool.read(run_dir, cursor, job)
        if following == cursor:
            return points, batches, cursor
        points, batches, cursor = [*points, *batch.points], batches + 1, following


def steps_of(points, name="train/loss"):
    return [point.step for point in points if point.name == name]


def test_a_line_becomes_a_point_per_number(tmp_path):
    append(
        tmp_path,
        step_line(4, logged={"confidence": 0.5, "broken": None}, phases={"forward": 1.0}),
        {"step": 4, "evaluation": {"accuracy": 0.75, "confusion": [[1, 2], [3, 4]]}},
    )
    points, _, _ = read_all(tmp_path, SpoolCursor())
    assert {point.name: point.value for point in points} == {
        "train/loss": 0.25,
        "train/lr": 0.1,
        "train/samples_per_s": 40.0,
        "train/confidence": 0.5,
        "evaluation/accuracy": 0.75,
    }
    assert {(point.step, point.time_unix_s) for point in points} == {(4, 104.0)}


def test_the_speed_of_a_language_model_is_in_tokens_too(tmp_path):
    append(tmp_path, step_line(4))
    points, _, _ = read_all(tmp_path, SpoolCursor(), replace(JOB, tokens_per_sample=16))
    values = {point.name: point.value for point in points}
    assert values["train/tokens_per_s"] == 16 * values["train/samples_per_s"]


def test_a_long_file_is_read_in_batches(tmp_path):
    append(tmp_path, *(step_line(step) for step in range(1, 2001)))
    points, batches, _ = read_all(tmp_path, SpoolCursor())
    assert steps_of(points) == list(range(1, 2001))
    assert batches == -(-(tmp_path / "metrics.jsonl").stat().st_size // BATCH_BYTES)


def test_a_line_is_read_once_it_is_whole_and_a_torn_one_is_skipped(tmp_path):
    append(tmp_path, step_line(1))
    _, _, cursor = read_all(tmp_path, SpoolCursor())
    path = tmp_path / "metrics.jsonl"
    with path.open("a") as file:
        file.write('{"step": 2, "lo')
    assert read_all(tmp_path, cursor)[0] == []
    with path.open("a") as file:
        file.write("\n")
    append(tmp_path, step_line(3))
    assert steps_of(read_all(tmp_path, cursor)[0]) == [3]


def test_a_cursor_outlives_its_process(tmp_path):
    append(tmp_path, step_line(1), {"step": 1, "evaluation": {"accuracy": 0.5}})
    _, _, cursor = read_all(tmp_path, SpoolCursor())
    append(tmp_path, step_line(2))
    again = SpoolCursor.model_validate_json(cursor.model_dump_json())
    assert steps_of(read_all(tmp_path, again)[0]) == [2]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 40)),
            st.tuples(st.just("cut"), st.integers(1, 30)),
            st.tuples(st.just("read"), st.just(0)),
        ),
        max_size=30,
    ),
    st.sampled_from([1, 4000, 70_000]),
)
@settings(max_examples=60, deadline=None)
def test_steps_that_are_computed_again_are_read_once(acts, padding):
    """A restart cuts steps off the file, and computes them again with later times."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir, now, seen, cursor = Path(folder), 0, [], SpoolCursor()
        ends = [0]  # of the lines, bytes
        path = run_dir / "metrics.jsonl"
        path.touch()
        for act, number in [*acts, ("append", 1), ("read", 0)]:
            if act == "append":
                for _ in range(number):
                    now += 1
                    fields = {"time_unix_s": float(now), "logged": {}, "padding": "x" * padding}
                    append(run_dir, step_line(len(ends), **fields))
                    ends.append(path.stat().st_size)
            elif act == "cut":
                del ends[max(1, len(ends) - number) :]
                os.truncate(path, ends[-1])
            else:
                points, _, cursor = read_all(run_dir, cursor)
                seen += steps_of(points)
        assert seen == sorted(set(seen))
        assert set(range(1, len(ends))) <= set(seen)


def test_recoveries_and_samples_of_hosts_become_points(tmp_path):
    report = {
        "number": 3, "time_unix_s": 50.0, "outcome": "recovered", "step": 7, "ended": [],
        "causes": [{"who": "rank 1", "rank": 1, "what": "was killed"}], "halted": [0],
        "seconds": {"forked": 0.1, "next step": 0.2}, "total_s": 0.3, "checkpoint": None,
        "recomputed_steps": 0, "recomputed_samples": 0,
    }  # fmt: skip
    append(tmp_path, report, {"number": "of another version"}, name="recoveries.jsonl")
    sample = {"host": "a", "time_unix_s": 9.0, "cpu": 0.5, "gpus": [{"memory_bytes": 10}]}
    append(tmp_path, sample, sample, name="system.jsonl")
    batch, _ = spool.read(tmp_path, SpoolCursor(), JOB)
    assert [report.number for report in batch.recoveries] == [3]
    found = {(point.name, point.step): point.value for point in batch.points}
    assert found["recovery/seconds", 3] == pytest.approx(0.3)
    assert found["system/a/cpu", 1] == found["system/a/cpu", 2] == 0.5
    assert found["system/a/gpu0/memory_bytes", 2] == 10
