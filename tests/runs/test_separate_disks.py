"""Hosts share nothing: each has its own network, name and disk, and joins to get job and code."""

import json
import shutil
import signal

import pytest

from checkpoints import store_in
from conftest import change_last_byte, events_of, metrics_of, wait_until
from holdfast.checkpoint import names
from holdfast.worker.metrics import MAX_RECENT
from namespaces import namespaces

pytestmark = pytest.mark.slow

TASK = """
import os
import pathlib
import signal
import socket

import layers
import torch

def main(session):
    print("hello from", socket.gethostname())
    host, mark = socket.gethostname(), pathlib.Path("mark")
    torch.manual_seed(1)
    model, _ = session.attach(layers.model, lambda p: torch.optim.SGD(p, lr=0.1))
    data = [(torch.full((4,), i / 100), torch.tensor([i / 50])) for i in range(100)]
    for shard in session.shards(data):
        inputs, targets = shard.batch
        session.backward(torch.nn.functional.mse_loss(model(inputs), targets))
        if host == "h2" and session.step == 5 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
"""
LAYERS = "import torch\n\ndef model():\n    return torch.nn.Linear(4, 1)\n"
JOB = ["digits", "shards=4", "workers=2"]


@pytest.fixture
def hosts(tmp_path):
    with namespaces(tmp_path, 2) as made:
        yield made


class Run:
    """A run, whose directory is runs/run on each of two hosts."""

    def __init__(self, hosts):
        self.hosts = hosts

    def __call__(self, *words, on=1):
        """Begin it; returns the commands of the coordinator's host and of the other one."""
        hosts, token = self.hosts, self.token(on)
        token.unlink(missing_ok=True)
        address = ["--hosts", 2, "--address", hosts.address(on)]
        first = hosts.start(on, "coordinator", *words, *address, "--run", "runs/run")
        wait_until(lambda: token.exists() or first.poll() is not None)
        assert token.exists(), hosts.output(on)
        return first, self.join(on)

    def join(self, on):
        """Have the other host join; returns its command."""
        hosts, other = self.hosts, 3 - on
        shutil.copy(self.token(on), hosts.disk(other) / "join.token")
        join = ["--join", f"{hosts.address(on)}:50051", "--token-file", "join.token"]
        return hosts.start(other, "agent", *join)

    def token(self, on):
        return run_dir(self.hosts, on) / "secrets" / "join.token"


@pytest.fixture
def begin(hosts):
    return Run(hosts)


def run_dir(hosts, number):
    return hosts.disk(number) / "runs" / "run"


def result_of(path):
    return json.loads((path / "result.json").read_text())


def steps_of(hosts, number):
    return [
        names.step_of(each) for each in store_in(run_dir(hosts, number) / "checkpoints").committed()
    ]


def finish(hosts, first, agent, on=1):
    wait_until(lambda: first.poll() is not None or agent.poll() not in (None, 0), 120)
    assert first.poll() == 0, [hosts.output(number) for number in (on, 3 - on)]
    assert agent.wait(60) == 0, hosts.output(3 - on)


def sha_alone(hosts, *words):
    alone = hosts.start(1, "train", *words, "--run", "alone")
    assert alone.wait(120) == 0, hosts.output(1)
    return result_of(hosts.disk(1) / "alone")["weights_sha256"]


@pytest.mark.full
def test_hosts_get_the_code_of_a_task_keep_whole_checkpoints_and_send_their_logs(hosts, begin):
    project = hosts.disk(1) / "project"
    project.mkdir()
    (project / "mine.py").write_text(TASK)
    (project / "layers.py").write_text(LAYERS)
    job = ["project/mine.py:main", "shards=4", "epochs=3", "batch=20"]
    first, agent = begin(*job, "workers=2")
    finish(hosts, first, agent)
    assert result_of(run_dir(hosts, 1))["weights_sha256"] == sha_alone(hosts, *job)
    assert not (hosts.disk(2) / "project").exists()
    stores = [store_in(run_dir(hosts, number) / "checkpoints") for number in (1, 2)]
    roots = [store.manifest(store.newest().name).root for store in stores]
    assert roots[0] == roots[1]
    for number in (1, 2):
        steps = [line["step"] for line in metrics_of(run_dir(hosts, number)) if "loss" in line]
        assert steps == list(range(1, 16))
    saved = {event["host"] for event in events_of(run_dir(hosts, 1), "checkpoint-committed")}
    assert {host.partition("-")[0] for host in saved} == {"local", "h2"}
    printed = [(run_dir(hosts, 1) / "logs" / f"rank-{rank}.log").read_text() for rank in (0, 1)]
    assert sorted(printed) == ["hello from h1\n", "hello from h2\n" * 2]
    (lost,) = events_of(run_dir(hosts, 1), "worker-exited")
    assert lost["status"] == -signal.SIGKILL
    (report,) = (run_dir(hosts, 1) / "recoveries.jsonl").read_text().splitlines()
    assert "was killed by SIGKILL" in report


def damage(hosts):
    newest = max((run_dir(hosts, 2) / "checkpoints").glob("step-????????"))
    part = next(newest.glob("*.safetensors"))
    change_last_byte(part)


@pytest.mark.soak
@pytest.mark.parametrize("loss", ["host 1", "nothing", "a copy"])
def test_all_hosts_are_killed_and_the_run_continues_with_what_is_left(hosts, begin, loss):
    job = [*JOB, "epochs=20", "checkpoint.every_steps=20"]
    commands = begin(*job)
    wait_until(lambda: all((steps_of(hosts, number) or [0])[0] >= 40 for number in (1, 2)))
    for number, command in zip((1, 2), commands, strict=True):
        hosts.kill(number)
        command.wait(60)
    kept = min(steps_of(hosts, number)[0] for number in (1, 2))
    on = 1
    if loss == "host 1":
        shutil.rmtree(hosts.disk(1))
        hosts.disk(1).mkdir()
        on = 2
    if loss == "a copy":
        damage(hosts)
    first, agent = begin("--resume", on=on)
    finish(hosts, first, agent, on)
    result = result_of(run_dir(hosts, on))
    assert result["weights_sha256"] == sha_alone(hosts, *job)
    started = events_of(run_dir(hosts, on), "generation-started")
    assert started[-1]["step"] >= kept
    assert steps_of(hosts, 1)[0] == steps_of(hosts, 2)[0] == result["steps"]
    if loss == "a copy":
        assert list((run_dir(hosts, 2) / "checkpoints").glob("*.rejected-1"))


DIFFERENT = """
import pathlib
import socket

import torch

def main(session):
    model, _ = session.attach(lambda: torch.nn.Linear(1, 1), lambda p: torch.optim.SGD(p, lr=0.1))
    value = float(pathlib.Path("data.txt").read_text())
    for shard in session.shards([torch.full((1,), value)] * 40):
        session.backward(model(shard.batch).mean())
"""


@pytest.mark.soak
def test_different_data_are_named_with_their_hosts_before_the_first_step(hosts, begin):
    (hosts.disk(1) / "mine.py").write_text(DIFFERENT)
    for number in (1, 2):
        (hosts.disk(number) / "data.txt").write_text(f"{number}.5")
    first, agent = begin("mine.py:main", "workers=2")
    assert first.wait(120) == 2
    agent.wait(60)
    printed = hosts.output(1)
    assert "have different data: some samples differ, or unlike hosts round them" in printed
    assert "hosts 10.77.0." in printed
    assert not (run_dir(hosts, 1) / "metrics.jsonl").read_text()


@pytest.mark.soak
def test_a_host_that_has_lost_its_disk_gets_the_state_and_the_newest_metrics(hosts, begin):
    job = [*JOB, "epochs=30", "checkpoint.every_steps=20"]
    first, agent = begin(*job)
    wait_until(lambda: (steps_of(hosts, 2) or [0])[0] >= 40)
    hosts.kill(2)
    agent.wait(60)
    shutil.rmtree(hosts.disk(2))
    hosts.disk(2).mkdir()
    wait_until(lambda: sizes(hosts) == {1: 2, 2: 1})
    assert hosts.start(1, "token", "runs/run").wait(60) == 0
    agent = begin.join(1)
    wait_until(lambda: sizes(hosts) == {1: 2, 2: 1, 3: 2})
    finish(hosts, first, agent)
    result = result_of(run_dir(hosts, 1))
    assert result["weights_sha256"] == sha_alone(hosts, *job)
    back = [e["step"] for e in events_of(run_dir(hosts, 2), "generation-started")]
    seen = [line["step"] for line in metrics_of(run_dir(hosts, 2)) if "loss" in line]
    assert seen == list(range(max(1, back[0] - MAX_RECENT + 1), result["steps"] + 1))
    assert steps_of(hosts, 2)[0] == result["steps"]


def sizes(hosts):
    """The world size of each generation, as the first host has seen it."""
    started = events_of(run_dir(hosts, 1), "generation-started")
    return {event["number"]: len(event["members"]) for event in started}
