"""TorchTrainers of Ray Train that train jobs of holdfast, on three real raylets on this machine."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import events_of, needs_library, wait_until
from holdfast.checkpoint.exports.weights import digest, load_weights
from ray_cluster import RayCluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    needs_library("ray"),
]

SCRIPT = Path(__file__).with_name("ray_train_script.py")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    made = RayCluster(tmp_path_factory.mktemp("ray"))
    yield made
    made.close()


class Program:
    """A program with Ray Train code, and where it leaves what."""

    def __init__(self, folder, environment, words):
        self.result, self.run_dir = folder / "result.json", folder / "storage/digits/holdfast"
        self.output = folder / "output"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, SCRIPT, folder / "storage", self.result, *words],
                env={**os.environ, **environment}, cwd=folder, start_new_session=True,
                stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def await_steps(self, count):
        path = self.run_dir / "metrics.jsonl"
        wait_until(lambda: path.exists() and len(path.read_text().splitlines()) > count, 240)

    def about(self):
        assert self.process.wait(240) == 0, self.output.read_text()
        return json.loads(self.result.read_text())


@pytest.fixture
def begin(cluster, tmp_path):
    """Begin the program: `begin(key=number, …)`."""
    started = []

    def program(*words):
        started.append(Program(tmp_path, cluster.environment, words))
        return started[-1]

    yield program
    for each in started:
        each.process.kill()
        each.process.wait()


@pytest.fixture
def alone(command, tmp_path):
    """The result of the same job on one host, and the digest of its weights."""

    def run(*keys):
        job = ["digits", "shards=6", "workers=3", *keys]
        assert command("train", *job, "--run", "alone").wait(240) == 0
        result = json.loads((tmp_path / "alone" / "result.json").read_text())
        return result, digest(load_weights(tmp_path / "alone"))

    return run


@pytest.mark.soak
def test_the_program_of_the_page_runs(cluster, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "ray.md").read_text()
    (tmp_path / "trainer.py").write_text(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1])
    output = tmp_path / "output"
    with output.open("wb") as written:
        done = subprocess.run(
            [sys.executable, "trainer.py"], cwd=tmp_path, timeout=300, check=False,
            env={**os.environ, **cluster.environment, "HOME": str(tmp_path)},
            stdout=written, stderr=subprocess.STDOUT,
        )  # fmt: skip
    assert done.returncode == 0, output.read_text()
    # Lines of Ray may follow.
    (printed,) = re.findall(r"^(0\.\d+) (\d+)$", output.read_text(), re.MULTILINE)
    assert float(printed[0]) > 0.8
    assert int(printed[1]) > 4


def agent_pids(cluster):
    """The process of each agent on the cluster, by its name without the random part."""
    found = {}
    mark = f"XDG_STATE_HOME={cluster.environment['XDG_STATE_HOME']}".encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                words = (folder / "cmdline").read_bytes().decode().split("\0")
                is_ours = mark in (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if is_ours and "--placed" in words:
                found[words[words.index("--placed") + 1]] = int(folder.name)
    return found


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def attempts(program):
    return len(events_of(program.run_dir, "run-started"))


@pytest.mark.full
def test_ray_train_notices_nothing_of_a_killed_training_process(begin, alone):
    program = begin("epochs=20")
    program.await_steps(20)
    worker = next(e for e in events_of(program.run_dir, "worker-started") if e["rank"] == 1)
    os.kill(worker["pid"], signal.SIGKILL)
    about, (result, weights) = program.about(), alone("epochs=20")
    assert attempts(program) == 1
    assert about["returned"]["weights_sha256"] == result["weights_sha256"]
    assert about["weights"] == weights, "from the checkpoint of Ray's result"
    facts = {name: result[name] for name in ("loss", "accuracy", "test_loss")}
    assert about["metrics"] == {"step": result["steps"], "epoch": 19, **facts}
    assert about["reported"][-1] == about["metrics"]
    assert len(events_of(program.run_dir, "agent-placed")) == 3


@pytest.mark.parametrize("agent", ["agent-1", "agent-3"])  # with rank 0, and without
@pytest.mark.soak
def test_a_lost_worker_of_ray_train_costs_an_attempt(begin, cluster, alone, agent):
    program = begin("epochs=40")
    program.await_steps(220)
    lost = next(pid for name, pid in agent_pids(cluster).items() if name == agent)
    os.kill(parent_of(lost), signal.SIGKILL)
    about, (result, weights) = program.about(), alone("epochs=40")
    assert attempts(program) == 2
    assert about["returned"]["weights_sha256"] == result["weights_sha256"]
    assert about["weights"] == weights
    assert about["metrics"]["step"] == result["steps"]
    assert events_of(program.run_dir, "generation-started")[-1]["step"] > 0, "from a checkpoint"
