"""Runs in pods that exist, by the real kubectl and a stand-in for the API server."""

import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest

from conftest import events_of, metrics_of, wait_until
from pods_api import Cluster, pods_api

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pods")]

JOB = ["digits", "shards=6", "workers=3", "hosts=3"]
ON = ["--on", "kubernetes:app=trainer@ns", "--address", "127.0.0.1"]


@pytest.fixture
def cluster(tmp_path):
    with pods_api(tmp_path / "cluster") as found:
        found.add("web-0", "web-1", "web-2")
        yield found


@pytest.fixture
def start(cluster, tmp_path):
    """Start a command with a kubeconfig: `start(word, …) -> Popen`."""
    started = []

    def start(*words):
        with (tmp_path / "output").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "holdfast", *words], stdout=output, stderr=output,
                cwd=tmp_path, env=cluster.client, start_new_session=True,
            )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def output(tmp_path):
    return (tmp_path / "output").read_text(errors="replace")


def weights(run_dir):
    return json.loads((run_dir / "result.json").read_text())["weights_sha256"]


def steps(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def placed(tmp_path):
    """The pod of each agent, in the order in which they were placed."""
    if not (tmp_path / "run" / "events.jsonl").exists():
        return {}
    return {each["host"]: each["place"] for each in events_of(tmp_path / "run", "agent-placed")}


def alone(start, tmp_path, *keys):
    assert start("train", *JOB[:3], *keys, "--run", "alone").wait(120) == 0, output(tmp_path)
    return weights(tmp_path / "alone")


@pytest.mark.soak
def test_a_run_in_pods_has_the_weights_of_one_host_and_its_token_is_in_no_request(
    cluster, start, tmp_path
):
    process = start("train", *JOB, "hosts=2", "workers=2", "epochs=1", *ON, "--run", "run")
    assert process.wait(120) == 0, output(tmp_path)
    places = placed(tmp_path).values()
    assert len({*places} & {"web-0", "web-1", "web-2"}) == len(places) == 2
    assert not any("hf1." in path for path in cluster.requests)
    assert any("--placed" in path for path in cluster.requests)
    for name in ("web-0", "web-1", "web-2"):
        wait_until(lambda name=name: cluster.processes(name) == [])
    assert weights(tmp_path / "run") == alone(start, tmp_path, "epochs=1")


@pytest.mark.soak
def test_a_job_of_ones_own_recovers_in_pods(cluster, start, tmp_path):
    job = ["--job", "digits", "workers=1", "shards=2", "epochs=3", "--on", ON[1]]
    words = ["recovery", "--hosts", "2", "--rounds", "1", "--output", "results", *job]
    assert start("bench", *words).wait(240) == 0, output(tmp_path)
    rows = json.loads((tmp_path / "results" / "recovery.json").read_text())["rows"]
    assert [(row["fault"], row["same_weights"]) for row in rows] == [
        ("worker", True),
        ("agent", True),
    ]


@pytest.mark.soak
def test_a_pod_that_is_lost_is_continued_without_and_its_successor_is_used(
    cluster, start, tmp_path
):
    process = start("train", *JOB, "epochs=40", *ON, "--run", "run")
    wait_until(lambda: steps(tmp_path) > 20)
    cluster.lose("web-1")
    wait_until(lambda: events_of(tmp_path / "run", "agent-ended"))
    cluster.add("web-7x")
    wait_until(lambda: "web-7x" in placed(tmp_path).values(), 60)
    assert process.wait(200) == 0, output(tmp_path)
    done = [line["step"] for line in metrics_of(tmp_path / "run") if "loss" in line]
    assert done == sorted(set(done)), "no step was lost"
    assert weights(tmp_path / "run") == alone(start, tmp_path, "epochs=40")


@pytest.mark.soak
def test_an_agent_in_a_pod_that_will_be_ended_leaves_before(cluster, start, tmp_path):
    cluster.add("spare")
    process = start("train", *JOB, "epochs=100", *ON, "--run", "run")
    wait_until(lambda: steps(tmp_path) > 10)
    (first,) = [each for each in placed(tmp_path).values() if each == "web-0"] or ["spare"]
    deadline = datetime.now(UTC) + timedelta(seconds=20)
    cluster.delete_later(first, deadline.strftime("%Y-%m-%dT%H:%M:%SZ"))
    wait_until(lambda: events_of(tmp_path / "run", "agent-draining"))
    (draining,) = events_of(tmp_path / "run", "agent-draining")
    assert draining["place"] == first
    wait_until(lambda: cluster.processes(first) == [], 60)
    assert time.time() < deadline.timestamp() + 1
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130, output(tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("on", "message"),
    [
        ("kubernetes:", "'' selects no pods; give a label of theirs"),
        ("kubernetes:app=absent", "there are no pods with app=absent; see: kubectl get pods"),
        ("kubernetes:app=trainer", "3 pods; 2 of 4 can be used; web-0 is being deleted; web-3 is"),
    ],
)
def test_what_is_lacking_is_said(cluster, start, tmp_path, on, message):
    cluster.add("web-3", phase="Pending", conditions=[])
    cluster.delete_later("web-0", "2030-01-01T00:00:00Z")
    process = start("train", *JOB, "--on", on, "--address", "127.0.0.1", "--run", "run")
    assert process.wait(60) in (1, 2)
    assert message in output(tmp_path)


@pytest.mark.soak
def test_a_command_that_pods_cannot_reach_says_so(cluster, start, tmp_path):
    on = [*ON[:2], "--address", "127.0.0.1"]
    cluster.environment = lambda name: {**Cluster.environment(cluster, name), **no_route(tmp_path)}
    process = start("train", *JOB, *on, "--run", "run")
    assert process.wait(200) == 1
    said = output(tmp_path)
    assert "agents end as soon as kubernetes has started them: the agent on web-" in said
    assert "no coordinator answers at 127.0.0.1:" in said
    assert "whether the network lets this host reach the port" in said


def no_route(tmp_path):
    """The environment of a Python that can connect to nothing."""
    folder = tmp_path / "no-route"
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(
        "import socket\n"
        "def refuse(*_, **__): raise TimeoutError('timed out')\n"
        "socket.create_connection = refuse\n"
    )
    return {"PYTHONPATH": str(folder)}
