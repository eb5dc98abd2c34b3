"""Memory of devices that workers map: nothing of workers that are lost is left behind."""

import os
import signal
from pathlib import Path

import pytest

from conftest import events_of, sampled

pytestmark = pytest.mark.slow

NAME = "/memfd:holdfast-device"


def mapped_in(pid):
    """The memories that a process maps, by inode."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return sorted(int(line.split()[4]) for line in lines if NAME in line)


def open_in(pid):
    """The memories of which a process has a descriptor, by inode."""
    found = Path(f"/proc/{pid}/fd").iterdir()
    return sorted(each.stat().st_ino for each in found if str(each.readlink()).startswith(NAME))


class Kills:
    """Kills a worker every few steps; then looks at what the others have."""

    def __init__(self, run_dir, kills, workers):
        self._run_dir = run_dir
        self._kills = kills
        self._workers = workers
        self._due = 2
        self.killed = []
        self.mapped = {}
        self.held = []
        self.open = None

    def __call__(self, step):
        events = events_of(self._run_dir)
        begun = [each for each in events if each["event"] == "generation-started"]
        # Only between failures: with all members, and steps of their own.
        if len(begun) != len(self.killed) + 1 or step < max(self._due, begun[-1]["step"] + 2):
            return
        pids = {e["rank"]: e["pid"] for e in events if e["event"] == "worker-started"}
        if len(self.killed) < self._kills:
            rank = len(self.killed) % self._workers
            self._due = step + 2
            self.killed.append(pids[rank])
            os.kill(pids[rank], signal.SIGKILL)
        elif not self.mapped:
            (agent,) = (e["pid"] for e in events if e["event"] == "agent-started")
            self.held = open_in(agent)
            self.open = [fd for pid in pids.values() for fd in open_in(pid)]
            self.mapped = {rank: mapped_in(pid) for rank, pid in pids.items()}


@pytest.mark.parametrize(("kills", "workers"), sampled([(2, 1), (3, 2), (50, 2)], 0, 1))
def test_nothing_is_left_behind_by_workers_that_are_killed(
    train, reference, tmp_path, kills, workers
):
    watch = Kills(tmp_path / "run", kills, workers)
    keys = {"epochs": max(12, 3 * kills), "restarts": {"limit": 99}}
    given = {**keys, "workers": workers, "exchange": "mapped", "device": "cpu"}
    result = train(run_dir=tmp_path / "run", watch=watch, **given)
    assert len(watch.killed) == kills
    assert len(watch.held) == len(set(watch.held)) == workers
    assert watch.mapped == dict.fromkeys(range(workers), watch.held)
    assert watch.open == [], "only the agent keeps a descriptor"
    assert result["weights_sha256"] == reference(**keys)
