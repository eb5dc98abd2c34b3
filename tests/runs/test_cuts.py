"""Runs on three hosts with two workers each, whose links are cut, one-way, flapping or slow."""

import json
import statistics
import time

import pytest

from conftest import events_of, metrics_of, wait_until
from namespaces import namespaces

pytestmark = [pytest.mark.slow, pytest.mark.soak]

JOB = ["digits", "network=trusted", "shards=12", "restarts.limit=1000"]
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
        wait_until(self.token.exists)
        self.agents = {number: self.join(number) for number in (2, 3)}
        self.await_members(6)

    def join(self, number):
        where = f"{self.hosts.address(1)}:50051"
        return self.hosts.start(number, "agent", "--join", where, "--token-file", self.token)

    def generations(self):
        """The members of each generation, as every host has reported it."""
        path = self.folder / "events.jsonl"
        return events_of(self.folder, "generation-started") if path.exists() else []

    def await_members(self, count):
        """Wait until this many train, and have committed a few steps."""

        def train():
            newest = max(self.generations(), key=lambda each: each["number"], default=None)
            if newest is None or len(newest["members"]) != count:
                return False
            return self.commits() and self.commits()[-1]["step"] > newest["step"] + 5

        wait_until(train, 120)

    def commits(self):
        path = self.folder / "metrics.jsonl"
        return [each for each in metrics_of(self.folder) if "loss" in each] if path.exists() else []

    def end(self):
        """Wait for the end; returns the hash of the weights."""
        assert self.first.wait(300) == 0, self.hosts.output(1)
        begun = [each["step"] for each in self.generations()]
        assert begun == sorted(begun), "a step was lost"
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
        yield lambda *keys: Run(hosts, folder, *keys)


def test_the_others_commit_soon_after_a_cut(begin):
    run = begin("epochs=120", "evaluation.every_epochs=120")
    recoveries_s = []
    for number in [2, 3] * 5:
        run.hosts.cut(number)
        cut_at = time.time()
        run.await_members(4)
        (resumed, *_) = run.generations()[-2:]
        commits = [each for each in run.commits() if each["step"] > resumed["step"]]
        recoveries_s.append(commits[0]["time_unix_s"] - cut_at)
        run.hosts.heal(number)
        run.await_members(6)
    print(f"max {max(recoveries_s):.2f} s, median {statistics.median(recoveries_s):.2f} s")
    assert max(recoveries_s) <= MAX_RECOVERY_S
    assert run.end() == run.alone()
