"""Runs on hosts of a file: network namespaces, each with a real sshd."""

import json
import os
import signal
import sys

import pytest

from conftest import events_of, holdfast_processes, wait_until
from ssh_hosts import ssh_hosts

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ssh")]

PYTHON = f"python={sys.executable}"
JOB = ["digits", "shards=6", "workers=3", "hosts=3"]


def run_of(hosts, name="run"):
    return hosts.hosts.disk(1) / name


def weights(hosts, name="run"):
    return json.loads((run_of(hosts, name) / "result.json").read_text())["weights_sha256"]


def alone(hosts, *keys):
    """The weights of the same job on one host."""
    process = hosts.train(1, *JOB[:3], *keys, "--run", "alone")
    assert process.wait(120) == 0, hosts.hosts.output(1)
    return weights(hosts, "alone")


def placed(hosts):
    """The host of each agent, in the order in which they were placed."""
    if not (run_of(hosts) / "events.jsonl").exists():
        return {}
    return {each["host"]: each["place"] for each in events_of(run_of(hosts), "agent-placed")}


def steps(hosts):
    path = run_of(hosts) / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_hosts_of_a_file_train_to_the_weights_of_one(tmp_path):
    with ssh_hosts(tmp_path, 3) as hosts:
        hosts.file(1, *(f"h{number} {PYTHON}" for number in (1, 2, 3)))
        process = hosts.train(1, *JOB, "epochs=3", "--on", "ssh:hosts", "--run", "run")
        wait_until(lambda: steps(hosts) > 0)
        words = [
            path.read_bytes()
            for pid in holdfast_processes(str(hosts.folder))
            if (path := (tmp_path / "/proc" / str(pid) / "cmdline")).exists()
        ]
        tokens = [path.read_text() for path in run_of(hosts).glob("secrets/*token")]
        assert not any(token.encode() in line for token in tokens for line in words)
        assert process.wait(120) == 0, hosts.hosts.output(1)
        assert sorted(placed(hosts).values()) == ["h1", "h2", "h3"]
        wait_until(lambda: holdfast_processes(str(hosts.folder)) == [])
        assert weights(hosts) == alone(hosts, "epochs=3")
