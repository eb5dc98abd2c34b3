"""The commands of rendered pods train, with the user and the read-only disk that the pods have."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from pod import Container
from rendering import documents, pods_of, rendered

from conftest import wait_until
from kubernetes_api import kubernetes_api
from namespaces import namespaces

JOB = ["workers=2", "resources.cpus=0", "epochs=3"]
TOKEN = "join.token"
SCRAPE = [
    sys.executable, "-c",
    ("import sys, urllib.error, urllib.request as web\n"
    "asked = web.Request(sys.argv[1], headers={'Authorization': f'Bearer {sys.argv[2]}'})\n"
    "try: print(web.urlopen(asked, timeout=5).read().decode())\n"
    "except urllib.error.HTTPError as error: print(error.code, end='')\n"),
]  # fmt: skip
"""Prints the metrics at an address for a token, or the status of the refusal."""


@pytest.fixture
def stack():
    with ExitStack() as owned:
        yield owned


@pytest.mark.slow
@pytest.mark.soak
def test_rendered_pods_train_to_the_weights_of_one_host(stack, tmp_path):
    hosts = stack.enter_context(namespaces(tmp_path, 3))
    files = documents(rendered(*JOB, hosts=2))
    (first,), (agent,) = (
        list(pods_of(files[f"base/{name}.yaml"])) for name in ("coordinator", "agents")
    )
    folders = {
        name: owned_folder(tmp_path / name, first)
        for name in ("runs", "api", "join", "job", "metrics")
    }
    (folders["job"] / "job.yaml").write_text(rendered(*JOB, hosts=2)["base/job.yaml"])
    (folders["metrics"] / "token").write_text("for-prometheus\n")
    api = stack.enter_context(kubernetes_api(folders["api"], {("ns", "digits-join"): {}}))
    started = iter(range(100))

    def start(pod, container, number=None, environment=None):
        """Start a container on a host, or on this machine, where the stand-in listens."""
        at = {} if number is None else {"POD_IP": hosts.address(number)}
        return stack.enter_context(
            closing(
                Container(
                    tmp_path / f"container-{next(started)}",
                    pod,
                    container,
                    {
                        name: path
                        for name, path in folders.items()
                        if pod is first or name == "join"
                    },
                    {"digits-coordinator-0.digits": hosts.address(1)},
                    list if number is None else lambda words: hosts.command(number, *words),
                    {**at, **(environment or {})},
                )
            )
        )

    clear, sidecar = first["initContainers"]
    assert start(first, clear).wait(30) == 0
    token = start(first, sidecar, environment=api.environment)
    coordinator = start(first, first["containers"][0], 1)
    secret = api.secrets["ns", "digits-join"]
    wait_until(lambda: TOKEN in secret)
    (folders["join"] / TOKEN).write_bytes(secret[TOKEN])  # as the kubelet does
    scrape = [*SCRAPE, f"http://{hosts.address(1)}:9400/metrics"]
    wait_until(lambda: b"holdfast_run_info" in ran(hosts.command(2, *scrape, "for-prometheus")))
    assert ran(hosts.command(2, *scrape, "guessed")) == b"401"
    agents = [start(agent, agent["containers"][0], number) for number in (2, 3)]
    assert coordinator.wait(200) == 0, coordinator.output
    assert [each.wait(60) for each in agents] == [0, 0], agents[0].output
    token.request_end()
    assert token.wait(20) == 0, token.output
    assert weights(folders["runs"] / "digits") == weights(trained_alone(tmp_path / "alone"))


@pytest.mark.slow
def test_an_agent_whose_coordinator_was_replaced_is_not_alive(tmp_path):
    (agent,) = pods_of(documents(rendered())["base/agents.yaml"])
    container = agent["containers"][0]
    begin = container["command"][-1].partition("exec ")[0]
    probe = container["livenessProbe"]["exec"]["command"][-1]
    token = tmp_path / TOKEN

    def status(script, secret, coordinator):
        token.write_text(f"hf1.0f.{secret}.{coordinator}\n")
        local = script.replace("/tmp/", f"{tmp_path}/").replace("/etc/holdfast-join", str(tmp_path))
        return subprocess.run(["sh", "-c", local], check=False, timeout=30).returncode

    assert status(begin, "first", "a1") == 0
    assert status(probe, "first", "a1") == 0
    assert status(probe, "renewed", "a1") == 0
    assert status(probe, "second", "b2") != 0


def ran(command):
    """What a command prints."""
    return subprocess.run(command, capture_output=True, check=False, timeout=30).stdout


def owned_folder(path, pod):
    """A folder that the user of a pod owns, as `fsGroup` has it."""
    path.mkdir()
    os.chown(path, pod["securityContext"]["runAsUser"], pod["securityContext"]["fsGroup"])
    return path


def trained_alone(run_dir: Path):
    words = [sys.executable, "-m", "holdfast", "train", "digits", "epochs=3"]
    subprocess.run([*words, "--run", str(run_dir)], check=True, capture_output=True, timeout=200)
    return run_dir


def weights(run_dir: Path):
    return json.loads((run_dir / "result.json").read_text())["weights_sha256"]
