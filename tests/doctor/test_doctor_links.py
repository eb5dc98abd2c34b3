"""Links between two hosts of one process, and what links and reports mean together."""

import itertools
import socket

import pytest

from conftest import own_loopback_address, wait_until
from holdfast.coordinator.authority import Authority
from holdfast.doctor.finding import Outcome
from holdfast.doctor.peers.compare import (
    Peer,
    clocks,
    numerics,
    reached,
    settings,
    speeds,
    versions,
)
from holdfast.doctor.peers.link import Link, Reach
from holdfast.doctor.peers.link_server import LinkServer
from holdfast.doctor.peers.messages import ReportMessage
from holdfast.doctor.peers.rounds import rounds
from holdfast.doctor.torch_report import TorchReport
from holdfast.wire.tls import Role

KEY = b"k" * 32


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority.create(tmp_path_factory.mktemp("authority"))


def server(authority, name, key=KEY):
    return LinkServer(own_loopback_address(), authority.issue(name, Role.DATA), key)


@pytest.mark.slow
def test_a_link_is_measured_and_its_datagrams_arrive(authority):
    with server(authority, "a") as near, server(authority, "b") as far:
        link = near.measure("a", "b", far_address(far), far.port)
        assert link.reach is Reach.REACHED, link
        assert 0 < link.latency_s < 1
        assert link.bytes_per_s > 1e6
        wait_until(lambda: far.heard == {"a"})


def far_address(far):
    return far._listener.getsockname()[0]


def test_a_host_of_another_check_is_told_apart(authority, tmp_path):
    other = Authority.create(tmp_path)
    with server(authority, "a") as near, server(other, "b", b"x" * 32) as far:
        assert near.measure("a", "b", far_address(far), far.port).reach is Reach.UNLIKE
        assert far.heard == set()


def test_a_port_where_no_one_listens_refuses(authority):
    with server(authority, "a") as near, socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
        closed.close()
        assert near.measure("a", "b", "127.0.0.1", port).reach is Reach.REFUSED


@pytest.mark.parametrize("count", range(1, 9))
def test_rounds_have_every_ordered_pair_once_and_no_host_twice_at_a_time(count):
    found = rounds(count)
    pairs = [pair for each in found for pair in each]
    assert sorted(pairs) == sorted(itertools.permutations(range(count), 2))
    for each in found:
        hosts = [host for pair in each for host in pair]
        assert len(hosts) == len(set(hosts))


def peer(name, *, ahead_s=0.0, heard=(), torch="2.13.0", kernels="same", **numbers):
    numbers = {"torch": torch, "processor": "p", "capability": "AVX512", **numbers}
    report = ReportMessage(
        address="10.0.0.1", port=9, versions={"python": "3.11.7", "torch": torch}, cores=2,
        torch=TorchReport(torch=torch, numerics=numbers, kernels={"kernels": kernels}), findings=(),
    )  # fmt: skip
    return Peer(name=name, report=report, ahead_s=ahead_s, heard=frozenset(heard))


def link(source, target, reach=Reach.REACHED, rate=1e9, latency_s=1e-4):
    return Link(
        source=source, target=target, reach=reach, why="why", latency_s=latency_s, bytes_per_s=rate
    )


def test_hosts_that_are_alike_are_well():
    peers = [peer("a"), peer("b", ahead_s=0.2)]
    links = [link("a", "b"), link("b", "a")]
    found = [*versions(peers), *numerics(peers), *clocks(peers), *reached(peers, links)]
    found += speeds(links)
    assert [each.outcome for each in found] == [Outcome.OK] * 4


def test_another_version_of_torch_is_a_fault_of_the_host_that_differs():
    (found,) = versions([peer("a"), peer("b", torch="2.12.0")])
    assert (found.outcome, found.host) == (Outcome.FAULT, "b")
    assert found.found == "torch 2.12.0, not 2.13.0 as on a"


@pytest.mark.parametrize(
    ("other", "remedy"),
    [
        (peer("b", processor="q"), "set numerics=portable: both"),
        (peer("b", processor="q", kernels="other"), "set numerics=portable and check again"),
        (peer("b", ONEDNN_MAX_CPU_ISA="AVX2"), "set ONEDNN_MAX_CPU_ISA alike"),
    ],
)
def test_other_numerics_are_a_fault_with_what_would_make_them_equal(other, remedy):
    (found,) = numerics([peer("a", ONEDNN_MAX_CPU_ISA="unset"), other])
    if "ONEDNN" not in remedy:  # both leave the variable as it is
        (found,) = numerics([peer("a"), other])
    assert (found.outcome, found.host) == (Outcome.FAULT, "b")
    assert found.remedy.startswith(remedy)


def test_clocks_that_differ_by_hours_are_a_fault_and_by_seconds_advice():
    late, wrong = clocks([peer("a"), peer("b", ahead_s=-3.0), peer("c", ahead_s=1e6)])
    assert (late.outcome, wrong.outcome) == (Outcome.ADVICE, Outcome.FAULT)
    assert late.found == "3.0 s behind that of a"


@pytest.mark.parametrize(
    ("heard", "reach", "back", "words"),
    [
        ({"b": {"a"}}, Reach.SILENT, Reach.SILENT, "let a receive packets of b"),
        ({"a": {"b"}}, Reach.SILENT, Reach.SILENT, "let b receive packets of a"),
        ({}, Reach.SILENT, Reach.SILENT, "let the firewall of b pass TCP of a"),
        ({}, Reach.REFUSED, Reach.REACHED, "let the firewall of b pass TCP of a"),
        ({}, Reach.NO_ROUTE, Reach.REACHED, "name an address of b that a reaches"),
        ({}, Reach.UNLIKE, Reach.UNLIKE, "name the own address of b"),
    ],
)
def test_a_host_that_is_not_reached_is_named_with_the_reason(heard, reach, back, words):
    peers = [peer(name, heard=heard.get(name, ())) for name in "ab"]
    found = next(reached(peers, [link("a", "b", reach), link("b", "a", back)]))
    assert found.outcome is Outcome.FAULT
    assert found.found.startswith("a cannot connect to b at 10.0.0.1:9: why")
    assert words in found.remedy


def test_a_link_that_holds_the_others_up_is_named():
    links = [
        link("a", "b"),
        link("b", "a"),
        link("a", "c", rate=1e8),
        link("c", "a", latency_s=0.1),
    ]
    whole, slow, far = speeds(links)
    assert whole.outcome is Outcome.OK
    assert slow.found == "a sends 800 Mbit/s to c; the median is 8.0 Gbit/s"
    assert far.found == "100.0 ms from c to a and back"


def test_settings_are_commands_with_the_addresses_that_worked():
    first, other = settings([peer("a"), peer("b")], ("digits", "params={a: 1}"), 50051)
    assert first == (
        "holdfast coordinator digits 'params={a: 1}' --hosts 2 --address 10.0.0.1 --port 50051"
    )
    assert other.endswith("--token-file join.token --address 10.0.0.1")
