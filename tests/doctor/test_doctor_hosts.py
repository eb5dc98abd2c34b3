"""`holdfast doctor --hosts` on network namespaces, with faults in their links and on them."""

import json
import os
import re
import shlex
import shutil
import sys

import pytest

from conftest import wait_until
from namespaces import namespaces, needs_iptables

pytestmark = [pytest.mark.slow, pytest.mark.soak]


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


def named(told, outcome, check):
    """The findings of one check, joined, and the hosts that they name."""
    chosen = [f for f in told["findings"] if (f["check"], f["outcome"]) == (check, outcome)]
    return " | ".join(f["found"] + " → " + f["remedy"] for f in chosen), {f["host"] for f in chosen}


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


@needs_iptables
def test_faults_of_hosts_and_links_are_named_with_the_host_and_what_to_do(tmp_path):
    planted = tmp_path / "planted"
    (planted / "grpcio-1.60.0.dist-info").mkdir(parents=True)
    (planted / "grpcio-1.60.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: grpcio\nVersion: 1.60.0\n"
    )
    (planted / "sitecustomize.py").write_text(
        "import time\nnow = time.time\ntime.time = lambda: now() + 30\n"
    )
    with namespaces(tmp_path, 3) as hosts:
        hosts.deafen(3, to=2)
        hosts.slow(1, "20mbit")
        statuses, told = check(
            hosts, "digits", "workers=3",
            environment={2: {"PYTHONPATH": str(planted)}, 3: {"ATEN_CPU_CAPABILITY": "default"}},
        )  # fmt: skip
        assert statuses == [1, 1, 1], hosts.output(1) + hosts.output(2) + hosts.output(3)
    assert told["settings"] == []
    links, where = named(told, "fault", "links")
    assert where == {"h2", "h3"}
    assert "packets of h3 arrive" in links
    assert "let h3 receive packets of h2" in links
    assert named(told, "fault", "same bits")[1] == {"h3"}
    assert "set ATEN_CPU_CAPABILITY alike" in named(told, "fault", "same bits")[0]
    versions, where = named(told, "advice", "same versions")
    assert where == {"h2"}
    assert "grpcio 1.60.0, not " in versions
    time, where = named(told, "advice", "same time")
    assert where == {"h2"}
    assert re.match(r"(29|30)\.\d s ahead of that of h1", time)
    assert "h1 sends" in named(told, "advice", "bandwidth")[0]


def test_a_host_that_has_ended_may_join_again(tmp_path):
    with namespaces(tmp_path, 2) as hosts:
        words = ["digits", "workers=2", "--hosts", 2, "--address", hosts.address(1)]
        first = hosts.start(1, "doctor", *words, "--run", "runs/x")
        token = hosts.disk(1) / "runs" / "x-doctor" / "secrets" / "join.token"
        wait_until(token.exists)
        shutil.copy(token, hosts.disk(2) / "join.token")
        join = ["doctor", "--join", "10.77.0.1:50051", "--token-file", "join.token"]
        ended = hosts.start(2, *join)
        wait_until(lambda: "joined the check" in hosts.output(2))
        hosts.kill(2)
        ended.wait(60)
        again = hosts.start(2, *join)
        assert again.wait(200) == 0, hosts.output(2)
        assert first.wait(60) == 0, hosts.output(1)


@needs_iptables
def test_a_port_that_a_firewall_closes_is_named_by_the_host_that_cannot_join(tmp_path):
    with namespaces(tmp_path, 2) as hosts:
        hosts.deafen(1, to=2)
        token = hosts.disk(2) / "join.token"
        token.write_text(f"hf1.ab.{'s' * 43}.{'0' * 64}\n")
        asking = hosts.start(2, "doctor", "--join", "10.77.0.1:50051", "--token-file", "join.token")
        assert asking.wait(120) == 2
        assert "no coordinator answers at 10.77.0.1:50051" in hosts.output(2)
