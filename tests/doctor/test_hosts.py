"""`holdfast doctor --hosts` on network namespaces, with faults in their links and on them."""

import json
import os
import re
import shlex
import shutil
import sys

import pytest

from conftest import wait_until
from namespaces import namespaces

pytestmark = pytest.mark.slow


def check(hosts, *words, environment=None):
    """Run a check over all hosts; returns the exit status of each, and what the first has told.

    Args:
        hosts: Where.
        words: Of the first host's command.
        environment: Further variables by the number of a host.
    """

    def start(number, *own):
        given = {**os.environ, **(environment or {}).get(number, {})}
        with hosts.disk(number).with_suffix(".out").open("wb") as output:
            command = [sys.executable, "-m", "holdfast", "doctor", *own]
            return hosts.run(number, *command, output=output, environment=given)

    count, address = len(hosts.numbers), hosts.address(1)
    started = [
        start(1, *words, "--hosts", count, "--address", address, "--run", "runs/x", "--json")
    ]
    token = hosts.disk(1) / "runs" / "x-doctor" / "secrets" / "join.token"
    wait_until(lambda: token.exists() or started[0].poll() is not None)
    assert token.exists(), hosts.output(1)
    line = re.search(r"holdfast (doctor --join .*)", wait_for_line(hosts))
    for number in list(hosts.numbers)[1:]:
        shutil.copy(token, hosts.disk(number) / "join.token")
        words = shlex.split(line[1])[1:-1]
        started.append(start(number, *words, "join.token"))
    statuses = [each.wait(200) for each in started]
    told = json.loads(hosts.output(1).splitlines()[-1])
    assert not (hosts.disk(1) / "runs" / "x-doctor").exists()
    return statuses, told


def wait_for_line(hosts):
    wait_until(lambda: "--join" in hosts.output(1))
    return hosts.output(1)


def faults(told, check):
    return [
        each for each in told["findings"] if (each["check"], each["outcome"]) == (check, "fault")
    ]


def test_two_hosts_without_faults_are_checked_and_their_settings_printed(tmp_path):
    with namespaces(tmp_path, 2) as hosts:
        statuses, told = check(hosts, "digits", "workers=2")
        assert statuses == [0, 0], hosts.output(1) + hosts.output(2)
    found = {each["check"]: each["found"] for each in told["findings"] if not each["host"]}
    assert found["links"].startswith("2 reached")
    assert "with the weights of one host" in found["trial run"]
    assert told["settings"] == [
        "holdfast coordinator digits workers=2 --hosts 2 --address 10.77.0.1 --port 50051",
        "holdfast agent --join 10.77.0.1:50051 --token-file join.token --address 10.77.0.2",
    ]
