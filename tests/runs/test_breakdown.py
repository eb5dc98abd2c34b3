"""What limits a run is named: a worker that slows down, and what all spend their time on."""

import os
from pathlib import Path

import pytest
from trouble_tasks import BEGINS_AT
from typer.testing import CliRunner

from conftest import TASKS, events_of, sampled
from holdfast.cli import app
from holdfast.core.balance.times import PHASES
from holdfast.rundir import json_lines

pytestmark = pytest.mark.slow

JOB = {
    "task": f"{TASKS.parent / 'trouble_tasks.py'}:main",
    "batch": 24,
    "shards": 8,
    "workers": 2,
}


@pytest.fixture
def group():
    """A control group of version 1 that gets a twentieth of a processor."""
    folder = Path("/sys/fs/cgroup/cpu", f"holdfast-test-{os.getpid()}")
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    (folder / "cpu.cfs_period_us").write_text("50000")
    (folder / "cpu.cfs_quota_us").write_text("2500")
    yield folder
    folder.rmdir()


@pytest.mark.parametrize(
    ("trouble", "reason"),
    sampled(
        [
            ("work", "compute"),
            ("reader", "data"),
            ("quota", "throttling"),
            ("blocked", "contention"),
        ],
        2,
    ),
)
def test_a_worker_that_slows_down_is_named_with_the_reason(train, tmp_path, group, trouble, reason):
    params = {"trouble": trouble, "group": str(group)}
    # An even balance: a worker that gets no more shards shows no reason that replaces another one.
    train(**JOB, params=params, run_dir=tmp_path / "run", balance="even")
    slowed = events_of(tmp_path / "run", "worker-slowed")  # more of them on a machine under load
    steps = [each["step"] for each in slowed if (each["rank"], each["reason"]) == (1, reason)]
    assert any(step > BEGINS_AT for step in steps), slowed


def test_the_times_of_all_workers_are_in_the_metrics(train, tmp_path):
    result = train(**JOB, params={"trouble": "", "read_s": 0.002}, run_dir=tmp_path / "run")
    steps = [
        line for line in json_lines.read(tmp_path / "run" / "metrics.jsonl") if "workers" in line
    ]
    assert len(steps) == BEGINS_AT + 15
    workers = steps[-1]["workers"]
    assert (workers["rank"], workers["shards"]) == ([0, 1], [4, 4])
    assert workers.keys() - {"rank", "shards"} <= set(PHASES)
    assert all(seconds > 0.004 for seconds in workers["forward"])
    found = events_of(tmp_path / "run", "bottleneck-found")
    assert [each["bottleneck"] for each in found] == ["input-bound"]
    assert result["bottleneck"].startswith("input-bound: waiting for samples takes")

    table = CliRunner().invoke(app.app, ["breakdown", str(tmp_path / "run")]).output
    assert "rank   shards   data   forward" in table
    assert "input-bound: waiting for samples takes" in table
