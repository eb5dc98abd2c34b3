"""Checks of hosts that an engine places; here all of them are on this machine."""

import io
import os
import signal
from contextlib import closing, redirect_stderr

import pytest

from conftest import own_loopback_address
from holdfast.doctor.finding import Outcome
from holdfast.doctor.peers.check import HostsCheck
from holdfast.doctor.peers.profiling import profile_hosts
from holdfast.job import load
from holdfast.runs.hosts.endpoint import Endpoint, free_port
from holdfast.runs.hosts.placement import Placement
from process_engine import ProcessEngine

pytestmark = pytest.mark.slow

WORDS = ("digits", "workers=2", "hosts=2")


@pytest.fixture
def placement(tmp_path):
    with closing(ProcessEngine(tmp_path / "cluster")) as engine:
        endpoint = Endpoint(address=own_loopback_address(), port=free_port())
        yield Placement(engine=engine, endpoint=endpoint)


def check(placement, folder):
    job = load.load(WORDS[0], WORDS[1:]).resolved()
    hosts = HostsCheck(words=WORDS, folder=folder, show=lambda _: None)
    return hosts.run(job, placement, ("--on", "here"))


@pytest.mark.full
def test_hosts_of_an_engine_and_their_links_are_checked(placement, tmp_path):
    conclusion = check(placement, tmp_path / "check")
    found = {each.check: each.found for each in conclusion.findings}
    assert found["links"].startswith("2 reached")
    assert found["same weights"] == "the trial runs of 2 hosts end with the same"
    assert {each.host for each in conclusion.findings} == {"", "host-1", "host-2"}
    faults = {each.check for each in conclusion.findings if each.outcome is Outcome.FAULT}
    assert faults == {"address"}  # that of loopback, which other hosts cannot reach
    assert not (tmp_path / "check").exists()


@pytest.mark.soak
def test_a_host_that_ends_is_a_fault_that_names_it(placement, tmp_path):
    class Killing(io.StringIO):
        def write(self, news):
            if "host-2 has joined" in news:
                (process,) = (each for each, host in placement.engine._agents.values() if host == 2)
                os.killpg(process.pid, signal.SIGKILL)
            return len(news)

    with redirect_stderr(Killing()):
        conclusion = check(placement, tmp_path / "check")
    faults = [each for each in conclusion.findings if each.outcome is Outcome.FAULT]
    assert {(each.check, each.host) for each in faults} == {("hosts", "host-2")}
    assert conclusion.settings == ()


@pytest.mark.soak
def test_hosts_of_an_engine_are_profiled(placement):
    job, shown = load.load(WORDS[0], WORDS[1:]).resolved(), []
    found = profile_hosts(job, placement, "", shown.append)
    assert shown == []
    assert len(found.hosts) == 2
    assert len(found.links) == 2
