"""Hosts share nothing: each has its own network, name and disk, and joins to get job and code."""

import json
import shutil

import pytest

from checkpoints import store_in
from conftest import events_of, wait_until
from holdfast.checkpoint import names
from namespaces import namespaces

pytestmark = pytest.mark.slow

TASK = """
import layers
import torch

def main(session):
    torch.manual_seed(1)
    model, _ = session.attach(layers.model, lambda p: torch.optim.SGD(p, lr=0.1))
    data = [(torch.full((4,), i / 100), torch.tensor([i / 50])) for i in range(100)]
    for shard in session.shards(data):
        inputs, targets = shard.batch
        session.backward(torch.nn.functional.mse_loss(model(inputs), targets))
"""
LAYERS = "import torch\n\ndef model():\n    return torch.nn.Linear(4, 1)\n"
JOB = ["digits", "shards=4", "workers=2"]


@pytest.fixture
def hosts(tmp_path):
    with namespaces(tmp_path, 2) as made:
        yield made


@pytest.fixture
def begin(hosts):
    """Begin a run, whose directory is runs/run on every host: `begin(word, …, on=host)` returns
    the commands of the coordinator's host and of the other one.
    """

    def start(*words, on=1):
        other = 3 - on
        address = ["--hosts", 2, "--address", hosts.address(on)]
        token = hosts.disk(on) / "runs" / "run" / "secrets" / "join.token"
        token.unlink(missing_ok=True)
        first = hosts.start(on, "coordinator", *words, *address, "--run", "runs/run")
        wait_until(lambda: token.exists() or first.poll() is not None)
        assert token.exists(), hosts.output(on)
        shutil.copy(token, hosts.disk(other) / "join.token")
        join = ["--join", f"{hosts.address(on)}:50051", "--token-file", "join.token"]
        return first, hosts.start(other, "agent", *join)

    return start


def run_dir(hosts, number):
    return hosts.disk(number) / "runs" / "run"


def result_of(path):
    return json.loads((path / "result.json").read_text())


def steps_of(hosts, number):
    return [
        names.step_of(each) for each in store_in(run_dir(hosts, number) / "checkpoints").committed()
    ]


def finish(hosts, first, agent, on=1):
    assert first.wait(120) == 0, hosts.output(on)
    assert agent.wait(60) == 0, hosts.output(3 - on)


def sha_alone(hosts, *words):
    alone = hosts.start(1, "train", *words, "--run", "alone")
    assert alone.wait(120) == 0, hosts.output(1)
    return result_of(hosts.disk(1) / "alone")["weights_sha256"]


def test_hosts_get_the_code_of_a_task_and_keep_whole_checkpoints(hosts, begin):
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
        (saved,) = events_of(run_dir(hosts, number), "checkpoint-committed")
        assert saved["host"] == ("local-1" if number == 1 else saved["host"])


def damage(hosts):
    newest = max((run_dir(hosts, 2) / "checkpoints").glob("step-????????"))
    part = next(newest.glob("*.safetensors"))
    part.write_bytes(part.read_bytes()[:-1] + b"\xa5")


@pytest.mark.parametrize(
    "loss",
    [
        "host 1",
        pytest.param("nothing", marks=pytest.mark.soak),
        pytest.param("a copy", marks=pytest.mark.soak),
    ],
)
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
