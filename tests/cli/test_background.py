"""Runs in the background: `--detach`, `runs`, `logs` and `stop`."""

import json
import os
import signal

import pytest

from conftest import wait_until
from holdfast.errors import JobError
from holdfast.record import registry

pytestmark = pytest.mark.slow


@pytest.fixture
def own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def said(command, tmp_path):
    """What a command has printed: `said(word, …) -> text`."""
    count = 0

    def run(*words, status=0):
        nonlocal count
        count += 1
        assert command(*words).wait(120) == status, (tmp_path / f"output-{count - 1}").read_text()
        return (tmp_path / f"output-{count - 1}").read_text()

    return run


def test_a_run_in_the_background_is_listed_shown_and_stopped(own_state, said, tmp_path):
    begun = said("train", "digits", "epochs=500", "--detach", "--run", "runs/later")
    assert begun.splitlines()[0] == "later"
    wait_until(lambda: json.loads(said("runs", "--json"))[0]["state"] == "running")
    (row,) = json.loads(said("runs", "--json"))
    assert (row["id"], row["engine"]) == ("later", "local")
    assert row["last_event"]
    assert row["last_event_age_s"] >= 0
    assert said("stop", "later").startswith("stopped after step ")
    assert "waiting" in said("logs", "later") or "epoch" in said("logs", "later")
    (row,) = json.loads(said("runs", "--json"))
    assert row["state"] == "stopped"
    assert row["step"] == json.loads((tmp_path / "runs/later/result.json").read_text())["steps"]
    assert row["last_event"].startswith("run stopped")
    assert "run stopped" in said("runs")
    refused = said("stop", "later", status=2)
    assert "later is not running on this host: it is stopped" in refused


@pytest.mark.soak
def test_a_run_whose_process_was_killed_has_failed_and_goes_on_by_resume(own_state, said, tmp_path):
    said("train", "digits", "epochs=500", "--detach", "--run", "runs/later")
    started = json.loads((tmp_path / "runs/later/events.jsonl").read_text().splitlines()[0])
    wait_until((tmp_path / "runs" / "later" / "metrics.jsonl").exists)
    os.kill(started["pid"], signal.SIGKILL)

    def state():
        return json.loads(said("runs", "--json"))[0]["state"]

    wait_until(lambda: state() == "failed")
    assert "ended without writing an event" in json.loads(said("runs", "--json"))[0]["reason"]
    said("train", "digits", "epochs=500", "--run", "runs/later", "--resume", "--detach")
    wait_until(lambda: state() == "running")
    said("stop", "later", "--now")


@pytest.mark.full
def test_a_script_in_the_background_keeps_its_own_arguments(own_state, said, tmp_path):
    script = tmp_path / "tells.py"
    script.write_text("import sys; open('told', 'w').write(' '.join(sys.argv[1:]))")
    options = ["--detach", "--run", "runs/later"]
    assert said("run", *options, script, "--detach", "--run", "x").splitlines()[0] == "later"
    wait_until(lambda: json.loads(said("runs", "--json"))[0]["state"] == "finished")
    assert (tmp_path / "told").read_text() == "--detach --run x"


def test_workers_of_an_engine_are_not_counted_here(said):
    refused = said("run", "--workers", "auto", "--on", "slurm", __file__, status=2)
    assert "--workers auto counts the cores of this host; with --on, give a number" in refused


def test_a_job_that_is_wrong_says_so_and_leaves_nothing(own_state, said, tmp_path):
    refused = said("train", "digits", "workers=two", "--detach", "--run", "later", status=2)
    assert "workers" in refused
    assert json.loads(said("runs", "--json")) == []
    assert "no run 'later'; holdfast runs lists" in said("logs", "later", status=2)


def test_a_run_that_does_not_run_here_is_not_stopped(tmp_path):
    (tmp_path / "job.yaml").touch()
    with pytest.raises(JobError, match=r"is not running on this host: it is starting; if another"):
        registry.find(str(tmp_path)).stop()
