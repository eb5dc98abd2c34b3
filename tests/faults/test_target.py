"""Faults reach the processes of the run, and never another one with the number of one of them."""

import json
import signal
import subprocess
import sys
import time

import pytest

from holdfast.faults.target import Target
from holdfast.rundir.run_directory import EVENTS


@pytest.fixture
def process():
    """A process that waits until it is killed."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as started:
        yield started
        started.kill()


def target_of(run_dir, *events):
    """A run with these events in its log, each some seconds old."""
    lines = [{"time_unix_s": time.time() - age_s, **event} for age_s, event in events]
    (run_dir / EVENTS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    target = Target(run_dir, whole=True)
    target.look()
    return target


def started(process, rank=1):
    return {"event": "worker-started", "rank": rank, "pid": process.pid}


def test_a_signal_reaches_the_worker_that_was_logged(tmp_path, process):
    target = target_of(tmp_path, (0, started(process)))
    assert target.has(1)
    target.send(signal.SIGKILL, 1)
    assert process.wait() == -signal.SIGKILL
    assert not target.has(1)


def test_a_process_that_got_the_number_of_a_worker_later_is_not_hit(tmp_path, process):
    target = target_of(tmp_path, (3600, started(process)))
    assert not target.has(1)
    target.send(signal.SIGKILL, 1)
    assert process.poll() is None


def test_a_process_is_known_by_more_than_its_number_once_it_has_ended(tmp_path, process):
    target = target_of(tmp_path, (0, started(process)))
    process.kill()
    process.wait()
    assert not target.has(1)
    target.send(signal.SIGKILL, 1)


def test_who_has_ended_is_forgotten_and_the_successor_is_known(tmp_path, process):
    exited = {"event": "worker-exited", "rank": 1, "pid": process.pid}
    assert not target_of(tmp_path, (0, started(process)), (0, exited)).has(1)
    before = {**exited, "pid": process.pid + 1}
    assert target_of(tmp_path, (0, started(process)), (0, before)).has(1)
