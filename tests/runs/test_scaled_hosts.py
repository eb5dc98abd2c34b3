"""Runs on several hosts whose number of hosts and workers changes while they train."""

import json
import shutil
import signal

import hurried
import pytest

from conftest import events_of, metrics_of, wait_until
from namespaces import namespaces

pytestmark = [pytest.mark.slow, pytest.mark.full]

TASK = hurried.task(pause_s=0.06)
JOB = ["mine.py:main", "shards=6", "batch=24"]


class Elastic:
    """A run that begins on two of three hosts, with a worker each."""

    def __init__(self, hosts, folder):
        self.hosts = hosts
        self.directory = hosts.disk(1) / "runs" / "run"
        self.hurry = folder / "hurry"
        self.words = [*JOB, f"params.hurry={self.hurry}", "workers=2", "max_workers=6"]
        (hosts.disk(1) / "mine.py").write_text(TASK)
        begin = [*self.words, "--hosts", "2:3", "--address", hosts.address(1)]
        self.command = hosts.start(1, "coordinator", *begin, "--run", "runs/run")
        self.token = self.directory / "secrets" / "join.token"
        wait_until(lambda: self.token.exists() or self.command.poll() is not None)
        assert self.token.exists(), hosts.output(1)

    def join(self, number):
        shutil.copy(self.token, self.hosts.disk(number) / "join.token")
        address = f"{self.hosts.address(1)}:50051"
        return self.hosts.start(number, "agent", "--join", address, "--token-file", "join.token")

    def ask(self, number, *words):
        """Exit status of a command on a host."""
        return self.hosts.start(number, *words).wait(60)

    @property
    def started(self):
        """The generations, as the first host has seen them."""
        started = events_of(self.directory, "generation-started")
        return [event for event in started if "shipped" not in event]

    @property
    def sizes(self):
        return [len(event["members"]) for event in self.started]

    @property
    def steps(self):
        found = (self.directory / "metrics.jsonl").exists()
        return (
            [line["step"] for line in metrics_of(self.directory) if "loss" in line] if found else []
        )

    def train_on(self, steps):
        """Wait until so many more steps are committed."""
        before = len(self.steps)
        wait_until(lambda: len(self.steps) >= before + steps)

    def check(self, agents):
        """Let the run end: it has computed each step once, and has the weights of one host."""
        self.hurry.touch()
        assert self.command.wait(60) == 0, self.hosts.output(1)
        assert [agent.wait(60) for agent in agents] == [0] * len(agents)
        assert self.steps == list(range(1, 301))
        assert self.ask(1, "train", *self.words, "--run", "alone") == 0, self.hosts.output(1)
        alone = json.loads((self.hosts.disk(1) / "alone" / "result.json").read_text())
        result = json.loads((self.directory / "result.json").read_text())
        assert result["weights_sha256"] == alone["weights_sha256"]


@pytest.fixture
def hosts(tmp_path):
    with namespaces(tmp_path, 3) as made:
        yield made


@pytest.fixture
def elastic(hosts, tmp_path):
    return Elastic(hosts, tmp_path)


def test_hosts_join_and_leave_a_run_that_is_scaled_and_its_weights_are_the_same(elastic, hosts):
    agents = [elastic.join(2)]
    elastic.train_on(5)
    assert elastic.ask(1, "scale", "runs/run", 6) == 2
    assert "can run 4; let another host join" in hosts.output(1)
    agents.append(elastic.join(3))
    wait_until(lambda: elastic.sizes == [2, 3])
    for workers in (6, 5, 3):
        elastic.train_on(5)
        assert elastic.ask(1, "scale", "runs/run", workers) == 0, hosts.output(1)
    assert elastic.ask(2, "leave", "runs/run") == 0, hosts.output(2)
    assert agents[0].wait(30) == 0, hosts.output(2)
    assert "this host has left the run" in hosts.output(2)
    # The same three members are on two hosts from here on, so other blocks belong to each.
    sizes = [2, 3, 6, 5, 3, 3]
    wait_until(lambda: elastic.sizes == sizes)
    elastic.train_on(5)
    assert elastic.sizes == sizes, "no worker failed"
    assert not events_of(elastic.directory, "host-lost")
    elastic.check(agents)


@pytest.mark.soak
def test_a_host_that_is_ended_by_a_signal_leaves_within_two_steps(elastic, hosts):
    agents = [elastic.join(2), elastic.join(3)]
    wait_until(lambda: 3 in elastic.sizes)
    elastic.train_on(20)
    holder = (hosts.disk(2) / "runs" / "run" / ".lock").read_text().split()[0]
    hosts.run(2, "kill", f"-{signal.SIGTERM.name}", holder).wait(10)
    assert agents[0].wait(30) == 0, hosts.output(2)
    wait_until(lambda: elastic.sizes[-1] == 2)
    assert not events_of(elastic.directory, "host-lost")
    elastic.check(agents[1:])


SCRIPT = """
import os, sys, time
from pathlib import Path

import torch
import torch.distributed as dist

folder = Path(sys.argv[1])
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
(folder / f"{os.environ['TORCHELASTIC_RESTART_COUNT']}-rank-{rank}-of-{size}").touch()
is_over = torch.zeros(1)
while not is_over.item():
    is_over.fill_((folder / "over").exists())
    dist.broadcast(is_over, 0)
    time.sleep(0.02)
dist.destroy_process_group()
"""


def test_a_script_restarts_with_the_hosts_that_there_are(hosts, tmp_path):
    seen, run = tmp_path / "seen", tmp_path / "run"
    seen.mkdir()
    (tmp_path / "script.py").write_text(SCRIPT)
    where = ["--nnodes", "1:3", "--nproc-per-node", 1, "--address", hosts.address(1), "--run", run]
    command = hosts.start(1, "run", *where, tmp_path / "script.py", seen)
    token = run / "secrets" / "join.token"
    join = ["agent", "--join", f"{hosts.address(1)}:50051", "--token-file", token]

    def trains(restarts, size):
        names = {f"{restarts}-rank-{rank}-of-{size}" for rank in range(size)}
        wait_until(lambda: names <= {path.name for path in seen.iterdir()})

    trains(0, 1)
    second = hosts.start(2, *join)
    trains(1, 2)
    third = hosts.start(3, *join)
    trains(2, 3)
    assert hosts.start(2, "leave", "runs/run").wait(60) == 0, hosts.output(2)
    assert second.wait(30) == 0
    trains(3, 2)
    (seen / "over").touch()
    assert command.wait(60) == 0, hosts.output(1)
    assert third.wait(60) == 0, hosts.output(3)
