"""Which run `holdfast top` shows, and what it says in a pipe."""

import fcntl
import os
import sys

import pytest

from holdfast.cli import app
from holdfast.cli.observe import top
from holdfast.errors import JobError
from holdfast.record import registry
from recorded_run import LAST_STEP, events, write, write_run

ENDED = {"time_unix_s": 1025.5, "event": "run-ended", "status": "finished", "steps": LAST_STEP}


@pytest.fixture
def listed(tmp_path, monkeypatch):
    """Add a run to the list: `listed(name, is_running=)`, the newest last."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    held = []

    def run(name, *, is_running=False):
        path = tmp_path / "runs" / name
        write_run(path)
        if is_running:
            held.append(os.open(path / ".lock", os.O_RDWR | os.O_CREAT))
            fcntl.flock(held[-1], fcntl.LOCK_EX)
        else:
            write(path / "events.jsonl", [*events(), ENDED])
        record = registry.add(path, "digits", "local")
        count = len(list(registry.records()))
        os.utime(record.folder / "record.json", (count, count))

    yield run
    for fd in held:
        os.close(fd)


def test_the_newest_run_that_is_running_is_shown_and_others_named(listed):
    listed("first", is_running=True)
    listed("second", is_running=True)
    listed("third")
    shown, others = top.chosen(None)
    assert (shown.id, others) == ("second", ["first"])
    for run in ("third", "runs/third"):
        shown, others = top.chosen(run)
        assert (shown.id, others) == ("third", ["second", "first"])


def test_without_a_run_that_is_running_the_newest_is_shown(listed):
    listed("first")
    listed("second")
    assert top.chosen(None)[0].id == "second"
    with pytest.raises(JobError, match="no run 'other'; holdfast runs lists"):
        top.chosen("other")


def test_a_run_that_is_in_no_list_is_found_in_its_place(listed, tmp_path):
    with pytest.raises(JobError, match="no run in runs/"):
        top.chosen(None)
    write_run(tmp_path / "runs" / "copied")
    assert top.chosen(None)[0].directory == tmp_path / "runs" / "copied"


def test_in_a_pipe_a_run_that_has_ended_is_one_line(listed, monkeypatch, capsys):
    listed("first")
    monkeypatch.setattr(sys, "argv", ["holdfast", "top"])
    with pytest.raises(SystemExit) as end:
        app.run(None)
    (line,) = capsys.readouterr().out.splitlines()
    assert end.value.code == 0
    assert line[10:].startswith("finished  step 40/60")
