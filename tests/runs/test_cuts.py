"""Runs on three hosts with two workers each, whose links are cut, one-way, flapping or slow."""

import json
import os
import random
import signal
import statistics
import subprocess
import time
from contextlib import suppress

import pytest

from conftest import wait_until
from holdfast.rundir.follow import JsonTail
from namespaces import namespaces, needs_iptables

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(1500)]

JOB = ["digits", "network=trusted", "shards=12", "restarts.limit=1000"]
OVERLOADED_S = 600
MAX_RECOVERY_S = 3.0
"""From a cut to the next commit of the others: 2 s without a heartbeat, 0.3 s of probes, the time
to halt and to resume, and a step."""


class Run:
    """A run on three hosts."""

    def __init__(self, hosts, folder, *keys):
        self.hosts, self.folder = hosts, folder / "run"
        self.keys = [*JOB, *keys]
        there = ["--hosts", 3, "--address", hosts.address(1), "--run", self.folder]
        self.first = hosts.start(1, "coordinator", *self.keys, "workers=6", *there)
        self.token = self.folder / "secrets" / "join.token"
        self.events, self.commits, self.first_commit_at = [], [], 0.0
        self._news = JsonTail(self.folder / "events.jsonl")
        self._steps = JsonTail(self.folder / "metrics.jsonl")
        wait_until(self.token.exists)
        self.agents = {number: self.join(number) for number in (2, 3)}
        self.await_members(6)

    def join(self, number):
        where = f"{self.hosts.address(1)}:50051"
        return self.hosts.start(number, "agent", "--join", where, "--token-file", self.token)

    def look(self):
        """Take note of what has happened since the last look."""
        self.events += self._news()
        self.commits += [each for each in self._steps() if "loss" in each]

    def generations(self):
        """Every generation, as each of its hosts has reported it."""
        self.look()
        return [each for each in self.events if each["event"] == "generation-started"]

    def await_members(self, count):
        """Wait until this many train, and have committed a few steps; returns when they
        committed the first of these.
        """

        def train():
            newest = max(self.generations(), key=lambda each: each["number"], default=None)
            if newest is None or len(newest["members"]) != count:
                return False
            steps = [each for each in self.commits if each["step"] > newest["step"]]
            self.first_commit_at = steps[0]["time_unix_s"] if steps else 0.0
            return len(steps) > 5

        wait_until(train, 240)
        return self.first_commit_at

    def await_progress(self, steps):
        """Wait until so many more steps are committed."""
        self.look()
        before = len(self.commits)
        wait_until(lambda: self.look() or len(self.commits) >= before + steps, 240)

    def lose(self, chance):
        """Kill a worker or an agent, or cut a host off until the others have committed a step."""
        kind = chance.choice(["worker", "worker", "agent", "link"])
        if kind == "link":
            number = chance.choice([2, 3])
            self.hosts.cut(number)
            self.await_progress(2)  # one of them may have been under way
            self.hosts.heal(number)
            return
        self.look()
        key = {"worker": "rank", "agent": "host"}[kind]
        started = [each for each in self.events if each["event"] == f"{kind}-started"]
        newest = {str(each[key]).rpartition("-")[0] or each[key]: each["pid"] for each in started}
        with suppress(ProcessLookupError):  # its host was lost
            os.kill(newest[chance.choice(sorted(newest))], signal.SIGKILL)

    def end(self, *, keeps_steps=True):
        """Wait for the end; returns the hash of the weights."""
        assert self.first.wait(900) == 0, self.hosts.output(1)
        begun = [each["step"] for each in self.generations()]
        assert not keeps_steps or begun == sorted(begun), "a step was lost"
        return json.loads((self.folder / "result.json").read_text())["weights_sha256"]

    def alone(self):
        """The hash of the weights of the same job on one host."""
        path = self.folder.with_name("alone")
        alone = self.hosts.start(1, "train", *self.keys, "workers=2", "--run", path)
        assert alone.wait(300) == 0
        return json.loads((path / "result.json").read_text())["weights_sha256"]


@pytest.fixture
def begin(tmp_path):
    """Begin a run: `begin(key=value, …) -> Run`."""
    with namespaces(tmp_path, 3) as hosts:
        folder = tmp_path / "shared"
        folder.mkdir()
        runs = []
        yield lambda *keys: runs.append(Run(hosts, folder, *keys)) or runs[-1]
    for process in (process for run in runs for process in (run.first, *run.agents.values())):
        process.wait(60)


def test_the_others_commit_soon_after_a_cut(begin):
    run = begin("epochs=120", "evaluation.every_epochs=120")
    recoveries_s = []
    for number in [2, 3] * 2:
        cut_at = time.time()
        run.hosts.cut(number)
        recoveries_s.append(run.await_members(4) - cut_at)
        run.hosts.heal(number)
        run.await_members(6)
    print(
        f"max {max(recoveries_s):.2f} s, median {statistics.median(recoveries_s):.2f} s",
        recoveries_s,
    )
    assert max(recoveries_s) <= MAX_RECOVERY_S
    assert run.end() == run.alone()


def test_hosts_that_cannot_reach_each_other_do_not_stop_the_others(begin):
    run = begin("epochs=60", "evaluation.every_epochs=60")
    run.hosts.deafen(2, to=3)
    run.await_members(4)
    run.hosts.heal(2)
    run.await_members(6)
    probed = {each["host"] for each in run.events if each["event"] == "host-probed"}
    assert probed == set(), "heartbeats of all hosts arrived"
    assert run.end() == run.alone()


@pytest.mark.parametrize("number", [2, 3])
def test_a_link_that_flaps_loses_no_step(begin, number):
    run = begin("epochs=200", "evaluation.every_epochs=200")  # longer than it flaps
    for _ in range(10):
        run.hosts.cut(number)
        time.sleep(3)
        run.hosts.heal(number)
        time.sleep(3)
    run.await_members(6)
    assert run.end() == run.alone()


@needs_iptables
def test_no_host_is_lost_on_a_slow_network_that_drops_packets(begin):
    run = begin("epochs=40", "evaluation.every_epochs=40")
    for number in (1, 2, 3):
        run.hosts.wifi(number)
    began, before = time.monotonic(), len(run.commits)
    wait_until(lambda: time.monotonic() > began + 120, 130)
    run.look()
    assert len(run.commits) > before
    for number in (1, 2, 3):
        run.hosts.heal(number)
    assert {each["number"] for each in run.generations()} == {1}
    assert run.end() == run.alone()


def test_no_host_is_lost_while_all_cores_are_overloaded(begin):
    run = begin("epochs=40", "evaluation.every_epochs=40")
    busy = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(16)]
    try:
        began = time.monotonic()
        wait_until(lambda: time.monotonic() > began + OVERLOADED_S, OVERLOADED_S + 10)
    finally:
        for each in busy:
            each.kill()
            each.wait()
    assert {each["number"] for each in run.generations()} == {1}
    assert run.end() == run.alone()


@pytest.mark.parametrize(("seed", "exchange"), [(0, "arena"), (1, "mapped")])
def test_sixty_random_losses_change_no_weight(begin, seed, exchange):
    chance = random.Random(seed)
    keys = ["batch=512", "epochs=800", "checkpoint.every_steps=20"]
    run = begin(*keys, f"exchange={exchange}")
    for _ in range(60):
        run.lose(chance)
        run.await_progress(3)
    run.await_members(6)
    assert run.end(keeps_steps=False) == run.alone()
