"""The record of a run: read as the files grow, also across a restart that cuts them off."""

import fcntl
import json
import os
from itertools import pairwise
from math import isnan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import JobError
from holdfast.job import load
from holdfast.record import metrics_reader, steps
from holdfast.record.goodput import Cause
from holdfast.record.run_record import RunRecord
from holdfast.record.state import state_of
from holdfast.rundir.json_lines import EventLog, forget_after, read


def line_of(step, at=None, **more):
    workers = {"rank": [0, 1], "shards": [3, 1], "data": [0.01, 0.02], "forward": [0.3, 0.1]}
    return {
        "step": step, "epoch": (step - 1) // 5, "loss": 1 / step, "norm": 2.0, "lr": 0.1,
        "samples": 8, "logged": {}, "seconds": 0.5, "phases": {"forward": 0.3},
        "workers": workers, "time_unix_s": 100 + step / 2 if at is None else at, **more,
    }  # fmt: skip


def append(run_dir, *lines, to="metrics.jsonl"):
    with (run_dir / to).open("ab") as file:
        file.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))


@pytest.fixture
def run_dir(tmp_path):
    """The directory of a run that has started."""
    append(
        tmp_path,
        {"time_unix_s": 90.0, "event": "run-started", "workers": 2, "pid": 1},
        {
            "time_unix_s": 99.0, "event": "generation-started", "number": 1, "members": [0, 1],
            "step": 0, "last_committed_step": 0, "from_checkpoint": True, "checkpoint": None,
        },
        to="events.jsonl",
    )  # fmt: skip
    return tmp_path


def values(record):
    """All that is known of steps and evaluations."""
    return (
        {name: column.tolist() for name, column in record.steps.columns.items()},
        {name: column.tolist() for name, column in record.steps.losses.items()},
        [each.step for each in record.evaluations],
    )


def test_a_script_resumes_where_it_first_reports(run_dir):
    """What it has made since its checkpoint is lost, and it loads that in its own time."""
    (run_dir / "job.yaml").write_text("script: {path: train.py}\nworkers: 2\n")
    append(
        run_dir,
        {
            "time_unix_s": 105.25, "event": "worker-exited", "rank": 1, "unexpected": True,
            "status": -9, "cause": "was killed", "error": "",
        },
        {
            "time_unix_s": 106.0, "event": "generation-started", "number": 2, "members": [0, 1],
            "step": 0, "last_committed_step": 10, "from_checkpoint": True, "checkpoint": None,
        },
        to="events.jsonl",
    )  # fmt: skip
    steps = [{"step": n, "loss": 1.0, "samples": 8} for n in range(1, 12)]
    times = [*(100 + n / 2 for n in range(1, 9)), 108.0, 108.5, 109.0]
    append(run_dir, *({**each, "time_unix_s": at} for each, at in zip(steps, times, strict=True)))
    seconds = RunRecord(run_dir).goodput().seconds
    assert seconds[Cause.RECOMPUTED] == 1.25
    assert seconds[Cause.NEW_GENERATION] == 0.75
    assert seconds[Cause.STATE_TRANSFER] == 1.5


def test_a_directory_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(JobError, match="contains no run"):
        RunRecord(tmp_path / "absent")


def test_a_run_without_any_file_is_starting_or_lost(tmp_path):
    record = RunRecord(tmp_path)
    assert (record.state().name, len(record.steps)) == ("starting", 0)
    assert record.goodput().total_s == 0
    assert record.steps.series("loss", 10).step == []


def test_a_long_run_is_read_in_slices(run_dir, monkeypatch):
    monkeypatch.setattr(metrics_reader, "BLOCK_BYTES", 1 << 11)
    append(run_dir, *map(line_of, range(1, 101)))
    record, shares = RunRecord(run_dir, slice_s=0.0), []
    while record.read_share < 1:
        shares.append(record.read_share)
        assert record.refresh()
    assert len(shares) > 3
    assert shares == sorted(set(shares))
    assert values(record) == values(RunRecord(run_dir))
    append(run_dir, line_of(101))
    assert record.refresh()
    assert record.steps.newest == 101


def test_of_many_workers_fewer_steps_are_kept(run_dir, monkeypatch):
    monkeypatch.setattr(steps, "MAX_WORKER_TIMES", 2 * 10)
    append(run_dir, *map(line_of, range(1, 101)))
    record = RunRecord(run_dir)
    assert len(record.steps) == 100
    assert 5 <= len(record.steps.workers) <= 10


def test_only_what_was_added_is_read(run_dir, monkeypatch):
    append(run_dir, *map(line_of, range(1, 5)))
    record = RunRecord(run_dir)
    assert list(record.steps.columns["step"]) == [1, 2, 3, 4]
    assert not record.refresh()
    decoded = []
    decoder = metrics_reader._LINE
    monkeypatch.setattr(
        metrics_reader, "_LINE", type("", (), {"decode": lambda _, each: read(each)})()
    )

    def read(line):
        decoded.append(line)
        return decoder.decode(line)

    append(run_dir, {"step": 4, "evaluation": {"accuracy": 0.5}}, line_of(5))
    assert record.refresh()
    assert len(decoded) == 2
    assert [each.results for each in record.evaluations] == [{"accuracy": 0.5}]
    assert record.steps.newest == 5


def test_a_line_counts_when_it_is_whole_and_a_torn_one_never(run_dir):
    text = json.dumps(line_of(1))
    (run_dir / "metrics.jsonl").write_text(text[:50])
    record = RunRecord(run_dir)
    assert len(record.steps) == 0
    (run_dir / "metrics.jsonl").write_text(text + '\n{"step": 2, "lo\n[]\n\xff\n')
    append(run_dir, line_of(2, loss="wrong"), {"step": 2}, line_of(2, loss=None))
    record.refresh()
    assert list(record.steps.columns["step"]) == [1, 2]
    assert isnan(record.steps.columns["loss"][1])


def test_steps_that_a_restart_removes_are_counted_once(run_dir):
    append(run_dir, *map(line_of, range(1, 9)), {"step": 8, "evaluation": {"right": 1.0}})
    record = RunRecord(run_dir)
    forget_after(run_dir / "metrics.jsonl", 4)
    append(run_dir, *(line_of(step, at=200.0 + step) for step in range(5, 7)))
    assert record.refresh()
    assert list(record.steps.columns["at"]) == [100.5, 101, 101.5, 102, 205, 206]
    assert record.evaluations == []
    assert len(record.workers(10)) == 2


def test_lines_that_a_restart_removes_are_kept_in_a_file_of_their_own(run_dir):
    lines = [line_of(step) for step in range(1, 9)]
    append(run_dir, *lines)
    with (run_dir / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 9, "lo')  # torn by a crash
    removed = run_dir / "recomputed.jsonl"
    forget_after(run_dir / "metrics.jsonl", 6, removed=removed)
    forget_after(run_dir / "metrics.jsonl", 6, removed=removed)  # nothing more
    forget_after(run_dir / "metrics.jsonl", 5, removed=removed)
    assert list(read(run_dir / "metrics.jsonl")) == lines[:5]
    assert list(read(removed)) == [*lines[6:], lines[5]]


def test_no_file_is_made_if_no_line_is_removed(run_dir):
    append(run_dir, line_of(1))
    forget_after(run_dir / "metrics.jsonl", 1, removed=run_dir / "recomputed.jsonl")
    assert not (run_dir / "recomputed.jsonl").exists()


@pytest.mark.slow
@settings(max_examples=30)
@given(data=st.data())
def test_a_record_that_follows_a_run_equals_one_that_is_opened_later(data, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("run")
    record, now, step = RunRecord(run_dir), 100.0, 0
    for _ in range(data.draw(st.integers(1, 6))):
        if step and data.draw(st.booleans()):
            step = data.draw(st.integers(0, step))
            forget_after(run_dir / "metrics.jsonl", step)
        for _ in range(data.draw(st.integers(0, 5))):
            step, now = step + 1, now + data.draw(st.floats(0.001, 2))
            append(run_dir, line_of(step, at=now))
            if data.draw(st.booleans()):
                append(run_dir, {"step": step, "evaluation": {"right": 0.5}})
        if data.draw(st.booleans()):
            record.refresh()
    record.refresh()
    assert values(record) == values(RunRecord(run_dir))


def test_times_that_are_missing_or_fall_do_not_count(run_dir):
    lines = [line_of(1, at=101.0), line_of(2, at=100.0), {**line_of(3), "time_unix_s": 103.0}]
    del lines[1]["time_unix_s"]
    append(run_dir, *lines, line_of(4, at=102.0))
    assert list(RunRecord(run_dir).steps.columns["at"]) == [101, 101, 103, 103]


def test_values_that_a_task_logs_are_columns(run_dir):
    append(run_dir, line_of(1), line_of(2, logged={"half": 0.5}), line_of(3, logged={"half": None}))
    half = list(RunRecord(run_dir).steps.values("half"))
    assert [None if isnan(each) else each for each in half] == [None, 0.5, None]


def test_long_runs_keep_the_workers_of_some_steps_and_of_the_newest(run_dir, monkeypatch):
    monkeypatch.setattr(steps, "MAX_WORKER_ROWS", 4)
    append(run_dir, *map(line_of, range(1, 41)))
    record = RunRecord(run_dir)
    rows = [row for row, _ in record.steps.workers]
    assert len(rows) <= 4
    assert len({after - before for before, after in pairwise(rows)}) == 1
    assert [row["shards"] for row in record.workers(20)] == [3, 1]
    found = record.goodput().seconds
    assert found[Cause.DATA] == pytest.approx(0.01 * 39, abs=0.01)  # of the last worker, held


def test_a_checkpoint_in_a_step_whose_workers_are_not_kept_counts(run_dir, monkeypatch):
    monkeypatch.setattr(steps, "MAX_WORKER_ROWS", 2)
    paused = line_of(12, phases={"checkpoint": 0.1})
    paused["workers"]["checkpoint"] = [0.1, 0.4]
    append(run_dir, *map(line_of, range(1, 12)), paused, line_of(13))
    assert RunRecord(run_dir).goodput().seconds[Cause.CHECKPOINT] == pytest.approx(0.4)


def test_a_series_has_the_extremes_and_the_mean_of_each_piece(run_dir):
    append(run_dir, *(line_of(step, loss=float(step % 4)) for step in range(1, 9)))
    series = RunRecord(run_dir).steps.series("loss", 2)
    assert (series.step, series.low, series.high) == ([4, 8], [0, 0], [3, 3])
    assert (series.mean, series.at) == ([1.5, 1.5], [102, 104])
    assert len(RunRecord(run_dir).steps.series("loss", 100).step) == 8
    assert RunRecord(run_dir).steps.series("absent", 100).step == []


def test_the_goodput_of_a_run_covers_its_whole_time(run_dir):
    append(run_dir, *map(line_of, range(1, 9)))
    ended = {"time_unix_s": 106.0, "event": "run-ended", "status": "finished", "steps": 8}
    append(run_dir, ended, to="events.jsonl")
    found = RunRecord(run_dir).goodput()
    assert found.total_s == pytest.approx(16)
    assert found.samples_per_s == pytest.approx(4)
    assert 0 < found.share < 0.5


def test_checkpoints_plans_reports_and_hosts_are_read(run_dir):
    folder = run_dir / "step-00000004"
    folder.mkdir()
    (folder / "part").write_bytes(b"12345")
    saved = {"event": "checkpoint-committed", "step": 4, "directory": str(folder)}
    plan = {"event": "plan-changed", "step": 2, "shards_per_worker": [3, 1]}
    with EventLog(run_dir / "events.jsonl") as log:
        for event in (saved, saved, {**saved, "step": 8, "directory": "gone"}, plan):
            log.event(event["event"], **{k: v for k, v in event.items() if k != "event"})
    sample = {"host": "reef", "time_unix_s": 101.0, "cpu": 0.5}
    damaged = ({"workers": 3}, {"workers": [{}]}, {"gpus": [3]}, {"host": 1}, {"time_unix_s": "x"})
    append(run_dir, sample, *(sample | each for each in damaged), to="system.jsonl")
    append(run_dir, {"number": 1}, to="recoveries.jsonl")
    record = RunRecord(run_dir)
    assert [(each.step, each.size_bytes) for each in record.checkpoints] == [(4, 5), (8, None)]
    assert [each.shards for each in record.plans] == [(3, 1)]
    assert list(record.system["reef"]) == [sample]
    assert record.recoveries == []  # of another version


@pytest.mark.parametrize(
    ("event", "name", "reason"),
    [
        ({"event": "run-ended", "status": "finished"}, "finished", ""),
        ({"event": "run-ended", "status": "stopped"}, "stopped", ""),
        ({"event": "run-failed", "error": "Interrupted", "message": "x"}, "stopped", "x"),
        ({"event": "run-failed", "error": "WorkerFailed", "message": "rank 1"}, "failed", "rank 1"),
        ({"event": "something"}, "failed", "its process ended"),
    ],
)
def test_the_state_of_a_run_that_no_process_holds(run_dir, event, name, reason):
    append(run_dir, {"time_unix_s": 120.0, **event}, to="events.jsonl")
    state = RunRecord(run_dir).state()
    assert state.name == name
    assert state.reason.startswith(reason)


def test_a_backup_that_completes_or_fails_after_the_end_does_not_change_the_state(run_dir):
    for event in ("run-ended", "backup-completed", "backup-failed"):
        append(run_dir, {"time_unix_s": 120.0, "event": event}, to="events.jsonl")
    assert RunRecord(run_dir).state().name == "finished"


KILLED = {
    "time_unix_s": 103.0, "event": "worker-exited", "rank": 1, "pid": 7, "status": -9,
    "cause": "was killed by SIGKILL", "error": "", "unexpected": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("event", "last_step_at", "name"),
    [
        (None, None, "starting"),
        (None, 102.0, "running"),
        (KILLED, 102.0, "recovering"),
        (KILLED, 104.0, "running"),
        ({**KILLED, "unexpected": False}, 102.0, "running"),
        ({**KILLED, "event": "worker-hung", "reason": "did nothing for 9 s"}, 102.0, "stalled"),
        (None, 80.0, "starting"),
    ],
)
def test_the_state_of_a_run_that_a_process_holds(event, last_step_at, name):
    events = [{"time_unix_s": 90.0, "event": "run-started", "workers": 2}, *([event] * bool(event))]
    assert state_of(events, last_step_at, 1.0, 105.0, is_held=True).name == name


def test_a_run_without_a_step_for_long_has_stalled():
    started = [{"time_unix_s": 90.0, "event": "run-started", "workers": 2}]
    state = state_of(started, 100.0, 20.0, 161.0, is_held=True)
    assert (state.name, state.reason) == ("stalled", "no step for 1\xa0min\xa001\xa0s")
    assert state_of(started, 100.0, 20.0, 159.0, is_held=True).name == "running"


def test_a_run_that_is_held_runs(run_dir):
    append(run_dir, line_of(1))
    fd = os.open(run_dir / ".lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert RunRecord(run_dir).state(now=101.0).name == "running"
    os.close(fd)


def test_the_length_of_a_run_follows_from_its_first_epoch(run_dir):
    (run_dir / "job.yaml").write_text(
        load.dump(load.check({"task": "a.py:b", "epochs": 3}, where="test"))
    )
    append(run_dir, *map(line_of, range(1, 6)))
    record = RunRecord(run_dir)
    assert record.total_steps is None
    append(run_dir, line_of(6))
    record.refresh()
    assert record.total_steps == 15
    (run_dir / "result.json").write_text('{"status": "finished"}')
    record.refresh()
    assert record.total_steps == 6
