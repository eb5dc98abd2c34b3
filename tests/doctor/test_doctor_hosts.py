"""`holdfast doctor` of several hosts, with faults on them and in their links."""

import json
import os
import re
import shutil
import sys

import pytest

from conftest import wait_until
from namespaces import namespaces

pytestmark = [pytest.mark.slow, pytest.mark.soak]


def check(hosts, *words, environment=None):
    """Run a check over all hosts; returns the exit status of each, and what the first has told.

    Args:
        hosts: Where.
        words: The job.
        environment: Further variables by the number of a host.
    """

    def start(number, *own):
        given = {**os.environ, **(environment or {}).get(number, {})}
        with hosts.disk(number).with_suffix(".out").open("wb") as output:
            command = [sys.executable, "-m", "holdfast", *own]
            return hosts.run(number, *command, output=output, environment=given)

    count, address = len(hosts.numbers), hosts.address(1)
    given = ["--address", address, "--run", "runs/x", "--json"]
    started = [start(1, "doctor", *words, "--hosts", count, *given)]
    token = token_of(hosts)
    for number in list(hosts.numbers)[1:]:
        shutil.copy(token, hosts.disk(number) / "join.token")
        join = ["--join", f"{address}:50051", "--token-file", "join.token"]
        started.append(start(number, "agent", *join))
    statuses = [each.wait(200) for each in started]
    told = json.loads(hosts.output(1).splitlines()[-1])
    assert not (hosts.disk(1) / "runs" / "x-doctor").exists()
    return statuses, told


def token_of(hosts):
    token = hosts.disk(1) / "runs" / "x-doctor" / "secrets" / "join.token"
    wait_until(token.exists)
    return token


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
    assert "2 workers summed" in found["trial run"]
    assert found["same weights"] == "the trial runs of 2 hosts end with the same"
    assert told["settings"] == [
        "holdfast coordinator digits workers=2 --hosts 2 --address 10.77.0.1 --port 50051",
        "holdfast agent --join 10.77.0.1:50051 --token-file join.token --address 10.77.0.2",
    ]


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
        assert statuses == [1, 0, 0], hosts.output(1) + hosts.output(2) + hosts.output(3)
    assert told["settings"] == []
    links, where = named(told, "fault", "links")
    assert where == {"h2", "h3"}
    assert "packets of h3 arrive, those from h2 do not" in links
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


def test_a_host_that_ends_is_a_fault_that_names_it(tmp_path):
    with namespaces(tmp_path, 2) as hosts:
        words = ["digits", "workers=2", "--hosts", 2, "--address", hosts.address(1)]
        first = hosts.start(1, "doctor", *words, "--run", "runs/x", "--json")
        shutil.copy(token_of(hosts), hosts.disk(2) / "join.token")
        agent = hosts.start(2, "agent", "--join", "10.77.0.1:50051", "--token-file", "join.token")
        wait_until(lambda: "h2 has joined" in hosts.output(1))
        hosts.kill(2)
        agent.wait(60)
        assert first.wait(200) == 1, hosts.output(1)
        told = json.loads(hosts.output(1).splitlines()[-1])
    faults = {(f["check"], f["host"]) for f in told["findings"] if f["outcome"] == "fault"}
    assert faults == {("hosts", "h2")}
    assert told["settings"] == []
