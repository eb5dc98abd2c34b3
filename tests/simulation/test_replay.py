"""Recorded events give the same stages and actions again, also after a file and a crash."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from holdfast.core.coordinator import CoordinatorStateMachine
from holdfast.core.debug_log import DebugLog
from holdfast.core.events import StatusReceived, StopReceived
from holdfast.core.policy import RecoveryPolicy
from holdfast.core.protocol import Stage, Status
from holdfast.rundir.run_directory import CRASH_DUMP, DEBUG_LOG
from holdfast.wire import debug_file
from holdfast_bench.simulation.cluster import Cluster
from holdfast_bench.simulation.random_faults import inject_at_random
from holdfast_bench.simulation.replay import replay
from holdfast_bench.simulation.simulation import Simulation


def recorded(seed, segment=10**6, until=10_000.0, faults=12):
    """The debug log of a simulated coordinator that was not restarted, and what it came to."""
    policy = RecoveryPolicy(
        world_size=4, min_workers=2, max_failures=10**6, regrow_delay_s=1.0, checkpoint_s=7.0
    )
    simulation = Simulation(
        Cluster(hosts=3, capacity=2, num_steps=40, rests=False), policy, seed, segment
    )
    inject_at_random(simulation, faults, 40.0, ("worker", "hang", "agent", "network", "noise"))
    simulation.run_until(until)
    return simulation.debug_log


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("segment", [7, 50, 10**6])
def test_a_log_gives_the_same_actions_again(tmp_path, seed, segment):
    log = recorded(seed, segment)
    debug_file.write(tmp_path / "log", log)
    read = debug_file.read(tmp_path / "log")
    assert list(read.entries) == log.entries
    machine = replay(read)
    assert debug_file.encode(machine) == debug_file.encode(log.machine)
    assert machine.stage == Stage.END


def test_a_log_that_was_tampered_with_is_told_apart(tmp_path):
    log = recorded(0)
    index = next(i for i, entry in enumerate(log.entries) if len(entry.actions) > 1)
    log.entries[index] = replace(log.entries[index], actions=())
    debug_file.write(tmp_path / "log", log)
    with pytest.raises(AssertionError, match=rf"event {index + 1} \(.*\) had this result"):
        replay(debug_file.read(tmp_path / "log"))


def test_a_file_of_another_version_is_refused(tmp_path):
    (tmp_path / "log").write_text(json.dumps({"error": "", "start": {"class": "X", "fields": {}}}))
    with pytest.raises(ValueError, match="is not a debug log of this version"):
        debug_file.read(tmp_path / "log")


def test_a_crash_happens_again_at_its_last_event(tmp_path):
    machine = CoordinatorStateMachine(RecoveryPolicy(world_size=1, min_workers=1), [], 0.0)
    machine._members._capacity = 1  # a bug: no host has joined
    log = DebugLog(machine)
    log.handle(StopReceived(), 1.0)
    with pytest.raises(AssertionError):
        log.handle(StatusReceived(Status(host="a", number=1, capacity=1)), 2.0)
    debug_file.write(tmp_path / "dump", log)
    dump = debug_file.read(tmp_path / "dump")
    assert len(dump.entries) == 2
    assert dump.error.startswith("AssertionError")
    with pytest.raises(AssertionError) as again:
        replay(dump)
    assert repr(again.value) == dump.error


@pytest.mark.slow
def test_the_log_of_a_run_gives_the_same_actions_again(train, tmp_path):
    train(run_dir=tmp_path / "run", workers=2, epochs=1)
    logs = tmp_path / "run" / "logs"
    assert not (logs / CRASH_DUMP).exists()
    recorded = debug_file.read(logs / DEBUG_LOG)
    assert replay(recorded).stage == Stage.END
    assert recorded.entries[-1].stage == Stage.END


@pytest.mark.slow
def test_events_debug_shows_the_newest_log(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "events.jsonl").touch()
    log = recorded(0)
    debug_file.write(tmp_path / "logs" / DEBUG_LOG, log)
    command = [sys.executable, "-m", "holdfast", "events", "--debug", str(tmp_path)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert (
        shown[0] == "       0.000  IDLE 0      host-0002 reports IDLE in generation 0, capacity 2"
    )
    assert sum(not line.startswith(" " * 20) for line in shown) == len(log.entries)
    assert shown[-1].startswith(" " * 26 + "→ ask host-")
