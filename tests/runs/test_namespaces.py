"""Two hosts with a network of their own: network namespaces on a bridge, whose links can be cut."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from conftest import events_of, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.soak]

NET = "10.78.0"


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def hosts():
    """The names of two namespaces, `hf1` with the address 10.78.0.1 and so on."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need root and iproute2")
    names = ["hf1", "hf2"]
    try:
        ip("link", "add", "hfbr", "type", "bridge")
        ip("link", "set", "hfbr", "up")
        for number, name in enumerate(names, start=1):
            ip("netns", "add", name)
            ip("link", "add", f"{name}v", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", f"{name}v", "master", "hfbr", "up")
            ip("-n", name, "addr", "add", f"{NET}.{number}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    except subprocess.CalledProcessError as error:
        pytest.skip(f"there are no network namespaces here: {error.stderr.decode()}")
    finally:
        for name in names:
            for pid in subprocess.run(
                ["ip", "netns", "pids", name], capture_output=True, text=True, check=False
            ).stdout.split():
                subprocess.run(["kill", "-9", pid], check=False)
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", "hfbr"], capture_output=True, check=False)


@pytest.fixture
def on(tmp_path):
    """Start a command in a namespace: `on(name, word, …) -> Popen`."""

    def start(name, *words):
        with (tmp_path / f"{name}.out").open("ab") as output:
            return subprocess.Popen(
                ["ip", "netns", "exec", name, sys.executable, "-m", "holdfast", *map(str, words)],
                stdout=output, stderr=subprocess.STDOUT, cwd=tmp_path,
            )  # fmt: skip

    return start


def test_a_host_that_is_cut_off_does_not_count_and_joins_again(hosts, on, tmp_path):
    job = ["digits", "network=trusted", "shards=8", "epochs=60"]
    address = ["--hosts", 2, "--address", f"{NET}.1"]
    first = on("hf1", "coordinator", *job, "workers=4", *address, "--run", "run")
    token = tmp_path / "run" / "secrets" / "join.token"
    wait_until(token.exists)
    agent = on("hf2", "agent", "--join", f"{NET}.1:50051", "--token-file", token)

    def members():
        started = events_of(tmp_path / "run", "generation-started")
        return [len(event["members"]) for event in started]

    wait_until(lambda: members() == [4, 4])
    ip("link", "set", "hf2v", "down")  # neither end sees a FIN or a RST
    wait_until(lambda: 2 in members())
    ip("link", "set", "hf2v", "up")
    wait_until(lambda: members()[-2:] == [4, 4] and len(members()) == 5)
    assert first.wait(120) == 0
    assert agent.wait(60) == 0
    alone = on("hf1", "train", *job, "workers=2", "--run", "alone")
    assert alone.wait(120) == 0
    several, one = (
        json.loads((tmp_path / name / "result.json").read_text()) for name in ("run", "alone")
    )
    assert several["weights_sha256"] == one["weights_sha256"]
    begun = [event["step"] for event in events_of(tmp_path / "run", "generation-started")]
    assert begun == sorted(begun), "no step was lost"
