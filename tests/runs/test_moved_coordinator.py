"""Runs whose coordinator moves to another host, because its own is lost, cut off, or leaves."""

import json
import shutil

import hurried
import pytest

from conftest import events_of, metrics_of, wait_until
from namespaces import namespaces

pytestmark = [pytest.mark.slow, pytest.mark.full]

TASK = hurried.task(pause_s=0.02)


class ThreeHosts:
    """A run on three hosts, which survives the loss of any of them.

    Attributes:
        agents: The commands of the hosts that have joined, by number.
    """

    def __init__(self, hosts, folder):
        self.hosts = hosts
        self.hurry = folder / "hurry"
        self.words = ["mine.py:main", "shards=6", "batch=24", f"params.hurry={self.hurry}"]
        self.words += ["workers=3", "on_failure=shrink"]
        (hosts.disk(1) / "mine.py").write_text(TASK)
        begin = [*self.words, "--hosts", 3, "--address", hosts.address(1), "--run", "runs/run"]
        self.command = hosts.start(1, "coordinator", *begin)
        self.token = self.directory(1) / "secrets" / "join.token"
        wait_until(lambda: self.token.exists() or self.command.poll() is not None)
        assert self.token.exists(), hosts.output(1)
        self.agents = {number: self.join(number) for number in (2, 3)}

    def directory(self, number):
        return self.hosts.disk(number) / "runs" / "run"

    def join(self, number):
        shutil.copy(self.token, self.hosts.disk(number) / "join.token")
        address = f"{self.hosts.address(1)}:50051"
        return self.hosts.start(number, "agent", "--join", address, "--token-file", "join.token")

    def lose(self, number):
        """Kill all processes of a host, and remove its disk."""
        command = self.agents.pop(number) if number in self.agents else self.command
        self.hosts.kill(number)
        command.wait(10)
        shutil.rmtree(self.directory(number))

    def steps(self, number):
        """The steps that a host has in its metrics."""
        found = (self.directory(number) / "metrics.jsonl").exists()
        lines = metrics_of(self.directory(number)) if found else []
        return [line["step"] for line in lines if "loss" in line]

    def train_on(self, number, steps):
        """Wait until so many more steps are committed on a host."""
        before = len(self.steps(number))
        wait_until(lambda: len(self.steps(number)) >= before + steps)

    def moves_of(self, number):
        """Events of a host that it has taken over the coordinator."""
        found = events_of(self.directory(number), "coordinator-moved")
        return [event for event in found if "shipped" not in event]

    def coordinator(self):
        """The number of the host that has taken over the coordinator."""
        wait_until(lambda: any(map(self.moves_of, self.agents)))
        (number,) = [number for number in self.agents if self.moves_of(number)]
        return number

    def check(self, coordinator):
        """Let the run end: each step was computed once, and the weights are those of one host."""
        self.hurry.touch()
        for number, agent in self.agents.items():
            assert agent.wait(60) == 0, self.hosts.output(number)
        assert self.steps(coordinator) == list(range(1, 301))
        alone = ["train", *self.words, "--run", "alone"]
        (self.hosts.disk(2) / "mine.py").write_text(TASK)
        assert self.hosts.start(2, *alone).wait(60) == 0, self.hosts.output(2)
        expected = json.loads((self.hosts.disk(2) / "alone" / "result.json").read_text())
        result = json.loads((self.directory(coordinator) / "result.json").read_text())
        assert result["weights_sha256"] == expected["weights_sha256"]


@pytest.fixture
def hosts(tmp_path):
    with namespaces(tmp_path, 3) as made:
        yield made


@pytest.fixture
def run(hosts, tmp_path):
    return ThreeHosts(hosts, tmp_path)


def test_a_run_survives_the_loss_of_the_coordinators_host_and_its_disk(run):
    run.train_on(1, 10)
    run.lose(1)
    number = run.coordinator()
    run.train_on(number, 10)
    run.check(number)


def test_a_coordinators_host_that_was_cut_off_changes_nothing_once_it_is_back(run, hosts):
    run.train_on(1, 10)
    hosts.cut(1)
    number = run.coordinator()
    run.train_on(number, 10)
    generations = len(events_of(run.directory(number), "generation-started"))
    hosts.heal(1)
    assert run.command.wait(60) == 1, hosts.output(1)
    assert "which continue the run" in hosts.output(1)
    run.train_on(number, 10)
    assert len(events_of(run.directory(number), "generation-started")) == generations
    run.check(number)


@pytest.mark.soak
def test_a_coordinator_moves_as_often_as_it_must(run, hosts):
    run.train_on(1, 10)
    run.lose(1)
    number = run.coordinator()
    run.train_on(number, 10)
    # Its process is replaced where it is.
    (started,) = events_of(run.directory(number), "coordinator-started")
    hosts.run(number, "kill", "-9", started["pid"]).wait(10)
    wait_until(lambda: len(events_of(run.directory(number), "coordinator-started")) == 2)
    run.train_on(number, 10)
    # A host that joins is the third one again, and gets the journal.
    made = hosts.start(number, "token", "runs/run")
    assert made.wait(30) == 0, hosts.output(number)
    token = run.directory(number) / "secrets" / "join.token"
    shutil.copy(token, hosts.disk(1) / "join.token")
    address = f"{hosts.address(number)}:50051"
    run.agents[1] = hosts.start(1, "agent", "--join", address, "--token-file", "join.token")
    wait_until((run.directory(1) / "metrics.jsonl").exists)
    run.train_on(1, 10)
    # The coordinator's host leaves, and hands over.
    assert hosts.start(number, "leave", "runs/run").wait(60) == 0, hosts.output(number)
    assert run.agents.pop(number).wait(30) == 0, hosts.output(number)
    successor = run.coordinator()
    run.train_on(successor, 10)
    run.hurry.touch()
    for host, agent in run.agents.items():
        assert agent.wait(60) == 0, hosts.output(host)
    assert (run.directory(successor) / "result.json").exists()


@pytest.mark.soak
def test_a_coordinator_goes_ahead_alone_once_all_other_hosts_have_ended(run, hosts):
    run.train_on(1, 10)
    run.lose(2)
    run.lose(3)
    run.train_on(1, 10)
    run.hurry.touch()
    assert run.command.wait(60) == 0, hosts.output(1)
    assert run.steps(1) == list(range(1, 301))


def test_the_host_that_began_a_run_leaves_it(run, hosts):
    run.train_on(1, 10)
    assert hosts.start(1, "leave", "runs/run").wait(60) == 0, hosts.output(1)
    assert run.command.wait(30) == 130, hosts.output(1)
    assert "this host has left the run" in hosts.output(1)
    number = run.coordinator()
    run.train_on(number, 10)
    run.check(number)
