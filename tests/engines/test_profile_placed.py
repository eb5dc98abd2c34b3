"""`holdfast profile --on ssh:FILE`: hosts of the file are measured, and the links between them."""

import signal
import sys

import pytest
from ssh_hosts import ssh_hosts

from conftest import holdfast_processes, wait_until
from holdfast.hardware import profile_file

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ssh")]


def measure(hosts, *numbers):
    """Measure hosts, led by the first one."""
    hosts.file(1, *(f"h{number} python={sys.executable}" for number in numbers))
    return hosts.start(1, "profile", "--on", "ssh:hosts", "--output", "cluster.json")


@pytest.mark.soak
def test_hosts_and_links_are_measured_for_a_file(tmp_path):
    with ssh_hosts(tmp_path, 3) as hosts:
        assert measure(hosts, 2, 3).wait(100) == 0, hosts.hosts.output(1)
        found = profile_file.read(hosts.hosts.disk(1) / "cluster.json")
        assert sorted(found.hosts) == ["h2", "h3"]
        assert all(host.devices and host.disk and host.memory for host in found.hosts.values())
        assert {(each.source, each.target) for each in found.links} == {("h2", "h3"), ("h3", "h2")}
        lines = hosts.hosts.output(1).splitlines()
        # Both are on the same cores, so their rates may not agree, and are then not compared.
        assert sum(" cpu: " in line for line in lines) == 2
        assert sum(line.startswith("link: h2 to h3, ") for line in lines) == 1
        wait_until(lambda: holdfast_processes(str(hosts.folder)) == [])


@pytest.mark.soak
def test_a_host_that_ends_is_named_and_no_file_is_written(tmp_path):
    with ssh_hosts(tmp_path, 4) as hosts:
        measuring = measure(hosts, 2, 3, 4)
        wait_until(lambda: "h4 has joined" in hosts.hosts.output(1))
        hosts.hosts.kill(4)
        assert measuring.wait(100) == 1
        out = hosts.hosts.output(1)
        assert "\nh4: " in out
        assert not (hosts.hosts.disk(1) / "cluster.json").exists()
        wait_until(lambda: holdfast_processes(str(hosts.folder)) == [])


@pytest.mark.soak
def test_links_that_fail_are_named_and_ctrl_c_leaves_nothing(tmp_path):
    with ssh_hosts(tmp_path, 3) as hosts:
        hosts.hosts.deafen(3, to=2)
        assert measure(hosts, 2, 3).wait(100) == 1
        out = hosts.hosts.output(1)
        assert "\nh2: no connection to h3: " in out
        assert "h3 cpu: " in out
        measuring = measure(hosts, 2, 3)
        wait_until(lambda: hosts.hosts.output(1).count("h2 has joined") == 2)
        measuring.send_signal(signal.SIGINT)
        assert measuring.wait(60) == 130
        wait_until(lambda: hosts.hosts.processes(2) == [hosts.servers[2].pid])
