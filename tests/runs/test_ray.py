"""Runs whose agents are placed by Ray, in a cluster of three real raylets on this machine."""

import json
import os
import re
import signal
from pathlib import Path

import pytest

from conftest import events_of, metrics_of, needs_library, wait_until
from ray_cluster import RayCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), needs_library("ray")]

JOB = ["digits", "shards=6", "workers=3", "hosts=3"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    made = RayCluster(tmp_path_factory.mktemp("ray"))
    yield made
    made.close()


@pytest.fixture
def begin(cluster, command, tmp_path, monkeypatch):
    """Begin a run on the cluster: `begin(key=value, …) -> process`."""
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)

    def run(*words, job=JOB):
        return command("train", *job, *words, "--on", "ray", "--run", "run")

    return run


@pytest.fixture
def alone(command, tmp_path):
    """The weights of the same job on one host."""

    def run(*keys):
        job = [*JOB[:3], *keys]
        assert command("train", *job, "--run", "alone").wait(240) == 0
        return json.loads((tmp_path / "alone" / "result.json").read_text())["weights_sha256"]

    return run


def result_of(tmp_path):
    return json.loads((tmp_path / "run" / "result.json").read_text())


def steps(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def placed(tmp_path):
    """The node of each agent, in the order in which they were placed."""
    return {each["host"]: each["place"] for each in events_of(tmp_path / "run", "agent-placed")}


@pytest.mark.soak
def test_the_command_of_the_page_trains(begin, tmp_path):
    page = Path(__file__).parents[2] / "docs" / "engines.md"
    words = re.search(r"^\$ holdfast train (.*) --on ray$", page.read_text(), re.MULTILINE)[1]
    assert begin(job=words.split()).wait(240) == 0, (tmp_path / "output-0").read_text()
    assert len(set(placed(tmp_path).values())) == 3, "each agent has a node of its own"


@pytest.mark.soak
def test_a_run_outlives_the_command_that_started_it(begin, command, tmp_path):
    process = begin("epochs=20")
    wait_until(lambda: steps(tmp_path) > 5, 240)
    process.kill()
    assert command("stop", "run").wait(60) == 0
    assert result_of(tmp_path)["status"] == "stopped"
    output = (tmp_path / "output-1").read_text()
    assert output == f"stopped after step {result_of(tmp_path)['steps']}\n"


@pytest.mark.full
def test_a_killed_worker_is_recovered_without_ray(begin, alone, tmp_path):
    process = begin("hosts=2", "workers=2", "epochs=6")
    wait_until(lambda: steps(tmp_path) > 5, 240)
    worker = next(e for e in events_of(tmp_path / "run", "worker-started") if e["rank"] == 1)
    os.kill(worker["pid"], signal.SIGKILL)
    assert process.wait(240) == 0, (tmp_path / "output-0").read_text()
    assert len(placed(tmp_path)) == 2, "Ray has restarted nothing"
    assert result_of(tmp_path)["weights_sha256"] == alone("epochs=6")
    done = [line["step"] for line in metrics_of(tmp_path / "run") if "loss" in line]
    assert done == list(range(1, result_of(tmp_path)["steps"] + 1))


@pytest.mark.soak
def test_what_does_not_fit_is_refused_and_leaves_nothing(begin, tmp_path):
    assert begin(job=["digits", "workers=5", "hosts=5"]).wait(60) == 1
    output = (tmp_path / "output-0").read_text()
    assert "ray lacks what the run needs: 5 nodes with 1 CPU free each; 3 of the cluster" in output
    assert not (tmp_path / "run").exists()


@pytest.mark.soak
def test_a_lost_node_is_replaced(begin, cluster, alone, tmp_path):
    process = begin("epochs=40")
    wait_until(lambda: steps(tmp_path) > 20, 240)
    lost = next(node for node in placed(tmp_path).values() if node != cluster.nodes[0])
    cluster.tell("add")
    cluster.tell("remove", lost)
    wait_until(lambda: len(placed(tmp_path)) == 4, 240)
    assert process.wait(240) == 0, (tmp_path / "output-0").read_text()
    assert placed(tmp_path)["agent-4"] != lost  # the first node is the head, which has the cluster
    assert result_of(tmp_path)["weights_sha256"] == alone("epochs=40")
    sizes = [len(e["members"]) for e in events_of(tmp_path / "run", "generation-started")]
    assert 2 in sizes
    assert sizes[-1] == 3


@pytest.mark.soak
def test_an_agent_leaves_a_node_before_ray_takes_it_away(begin, cluster, alone, tmp_path):
    process = begin("epochs=100")
    wait_until(lambda: steps(tmp_path) > 20, 240)
    drained = next(node for node in placed(tmp_path).values() if node != cluster.nodes[0])
    cluster.tell("add")
    cluster.tell("drain", drained, "40")
    wait_until(lambda: len(placed(tmp_path)) == 4, 240)
    wait_until(lambda: events_of(tmp_path / "run", "agent-ended"), 240)
    (ended,) = events_of(tmp_path / "run", "agent-ended")
    assert ended["place"] == drained
    assert process.wait(240) == 0, (tmp_path / "output-0").read_text()
    assert events_of(tmp_path / "run", "host-probed") == [], "it was not lost by its silence"
    assert result_of(tmp_path)["weights_sha256"] == alone("epochs=100")
