"""`holdfast doctor --on ssh:FILE`: the checks of several hosts, on those of the file."""

import json
import signal
import sys

import pytest
from ssh_hosts import ssh_hosts

from conftest import holdfast_processes, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.xdist_group("ssh")]

JOB = ["digits", "workers=2", "hosts=2"]


def check(hosts):
    """Start a check of the hosts 2 and 3, led by the first one."""
    hosts.file(1, *(f"h{number} python={sys.executable}" for number in (2, 3)))
    return hosts.start(1, "doctor", *JOB, "--on", "ssh:hosts", "--run", "runs/x", "--json")


def told(hosts):
    return json.loads(hosts.hosts.output(1).splitlines()[-1])


def nothing_is_left(hosts):
    wait_until(lambda: holdfast_processes(str(hosts.folder)) == [])
    return not [*hosts.hosts.disk(1).glob("runs/*")]


def test_hosts_of_a_file_and_every_pair_of_them_are_checked(tmp_path):
    with ssh_hosts(tmp_path, 3) as hosts:
        assert check(hosts).wait(200) == 0, hosts.hosts.output(1)
        assert told(hosts)["settings"] == ["holdfast train digits workers=2 hosts=2 --on ssh:hosts"]
        found = {each["check"]: each["found"] for each in told(hosts)["findings"]}
        assert {each["host"] for each in told(hosts)["findings"]} == {"", "h2", "h3"}
        assert found["links"].startswith("2 reached")
        assert found["same weights"] == "the trial runs of 2 hosts end with the same"
        assert nothing_is_left(hosts)


def test_faults_of_hosts_and_links_are_named_as_the_engine_names_hosts(tmp_path):
    with ssh_hosts(tmp_path, 3) as hosts:
        hosts.hosts.deafen(3, to=2)
        assert check(hosts).wait(200) == 1, hosts.hosts.output(1)
        faults = [each for each in told(hosts)["findings"] if each["outcome"] == "fault"]
        assert {(each["check"], each["host"]) for each in faults} == {
            ("links", "h2"),
            ("links", "h3"),
        }
        assert "let h3 receive packets of h2" in " ".join(each["remedy"] for each in faults)
        assert told(hosts)["settings"] == []
        assert nothing_is_left(hosts)


def test_a_host_that_ends_is_a_fault_and_what_is_killed_leaves_nothing(tmp_path):
    with ssh_hosts(tmp_path, 3) as hosts:
        checking = check(hosts)
        wait_until(lambda: "h3 has joined" in hosts.hosts.output(1))
        hosts.hosts.kill(3)
        assert checking.wait(200) == 1, hosts.hosts.output(1)
        faults = [each for each in told(hosts)["findings"] if each["outcome"] == "fault"]
        assert {(each["check"], each["host"]) for each in faults} == {("hosts", "h3")}
        hosts.servers[3].wait()
        hosts.serve(3)
        checking = check(hosts)
        joined = hosts.hosts.output(1).count("h2 has joined")
        wait_until(lambda: hosts.hosts.output(1).count("h2 has joined") > joined)
        checking.send_signal(signal.SIGKILL)
        wait_until(lambda: hosts.hosts.processes(2) == [hosts.servers[2].pid])
