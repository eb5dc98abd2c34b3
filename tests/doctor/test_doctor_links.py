"""Links between two hosts of one process, and what links and reports mean together."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from conftest import own_loopback_address
from holdfast.doctor.finding import Outcome
from holdfast.doctor.peers.compare import (
    Peer,
    clocks,
    numerics,
    reached,
    settings,
    speeds,
    versions,
    weights,
)
from holdfast.doctor.peers.links import Links
from holdfast.doctor.peers.report import HostReport, LinkReport, Reach, newest
from holdfast.doctor.torch_report import TorchReport

KEY = b"k" * 32


def measure(*keys):
    """What hosts of this process find of their links, each with a key."""
    listeners = [socket.create_server((own_loopback_address(), 0)) for _ in keys]
    addresses = {rank: "{}:{}".format(*each.getsockname()) for rank, each in enumerate(listeners)}
    with ExitStack() as stack:
        hosts = [
            stack.enter_context(Links(rank, addresses, listener, key))
            for rank, (listener, key) in enumerate(zip(listeners, keys, strict=True))
        ]
        for each in hosts:
            each._send_datagrams()  # all listen now
        with ThreadPoolExecutor(len(hosts)) as pool:
            links = list(pool.map(Links.measure, hosts))
        return [(found, each.heard) for found, each in zip(links, hosts, strict=True)]


@pytest.mark.slow
def test_every_link_is_measured_and_datagrams_arrive():
    found = measure(KEY, KEY, KEY)
    for rank, (links, heard) in enumerate(found):
        assert {int(each.target) for each in links} == heard == {0, 1, 2} - {rank}
        for link in links:
            assert link.reach is Reach.REACHED, link
            assert 0 < link.latency_s < 1
            assert link.bytes_per_s > 1e6
            assert abs(link.ahead_s) < 1


@pytest.mark.slow
def test_a_host_of_another_check_is_told_apart():
    for links, heard in measure(KEY, b"x" * 32):
        assert [each.reach for each in links] == [Reach.UNLIKE]
        assert heard == set()


def test_a_port_where_no_one_listens_refuses():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    listener = socket.create_server((own_loopback_address(), 0))
    addresses = {0: "{}:{}".format(*listener.getsockname()), 1: f"127.0.0.1:{port}"}
    with Links(0, addresses, listener, KEY) as links:
        assert [each.reach for each in links.measure()] == [Reach.REFUSED]


@pytest.mark.slow
def test_a_host_that_still_checks_itself_is_waited_for():
    listeners = [socket.create_server((own_loopback_address(), 0)) for _ in range(2)]
    addresses = {rank: "{}:{}".format(*each.getsockname()) for rank, each in enumerate(listeners)}
    with Links(0, addresses, listeners[0], KEY) as near, Links(1, addresses, listeners[1], KEY):
        measuring = threading.Thread(target=near.measure, daemon=True)
        measuring.start()
        measuring.join(0.3)
        assert measuring.is_alive()


def test_what_hosts_tell_is_read_from_among_other_lines(tmp_path):
    log = tmp_path / "rank-0.log"
    assert newest(log) is None
    first = HostReport(host="a")
    last = HostReport(host="a", links=(link("0", "1"),), heard=(1,))
    lines = ["a warning", first.model_dump_json(), last.model_dump_json(), '{"host": 1}', "end"]
    log.write_text("\n".join(lines))
    assert newest(log) == last


def peer(name, *, heard=(), torch="2.13.0", kernels="same", weights="w", **numbers):
    numbers = {"torch": torch, "processor": "p", "capability": "AVX512", **numbers}
    report = HostReport(
        host=name, address="10.0.0.1:9", versions={"python": "3.11.7", "torch": torch},
        torch=TorchReport(torch=torch, numerics=numbers, kernels={"kernels": kernels}),
        weights=weights,
    )  # fmt: skip
    return Peer(name=name, report=report, heard=frozenset(heard))


def link(source, target, reach=Reach.REACHED, rate=1e9, latency_s=1e-4, ahead_s=0.0):
    return LinkReport(
        source=source, target=target, reach=reach, why="why", latency_s=latency_s,
        bytes_per_s=rate, ahead_s=ahead_s,
    )  # fmt: skip


def test_hosts_that_are_alike_are_well():
    peers = [peer("a"), peer("b")]
    links = [link("a", "b", ahead_s=0.2), link("b", "a", ahead_s=-0.2)]
    found = [*versions(peers), *numerics(peers), *weights(peers), *clocks(peers, links)]
    found += [*reached(peers, links), *speeds(links)]
    assert [each.outcome for each in found] == [Outcome.OK] * 5


def test_other_weights_of_a_trial_are_a_fault_of_the_host_that_differs():
    (found,) = weights([peer("a"), peer("b", weights="v"), peer("c", weights="")])
    assert (found.outcome, found.host) == (Outcome.FAULT, "b")
    assert "than that of a" in found.found


def test_another_version_of_torch_is_a_fault_of_the_host_that_differs():
    (found,) = versions([peer("a"), peer("b", torch="2.12.0")])
    assert (found.outcome, found.host) == (Outcome.FAULT, "b")
    assert found.found == "torch 2.12.0, not 2.13.0 as on a"


@pytest.mark.parametrize(
    ("other", "remedy"),
    [
        (peer("b", processor="q"), "set numerics=portable: both"),
        (peer("b", processor="q", kernels="other"), "set numerics=portable and check again, or"),
        (peer("b", ONEDNN_MAX_CPU_ISA="AVX2"), "set ONEDNN_MAX_CPU_ISA alike"),
    ],
)
def test_other_numerics_are_a_fault_with_what_would_make_them_equal(other, remedy):
    (found,) = numerics([peer("a", ONEDNN_MAX_CPU_ISA="unset"), other])
    if "ONEDNN" not in remedy:  # both leave the variable as it is
        (found,) = numerics([peer("a"), other])
    assert (found.outcome, found.host) == (Outcome.FAULT, "b")
    assert found.remedy.startswith(remedy)


def test_other_numerics_are_advice_where_the_job_allows_them():
    (found,) = numerics([peer("a"), peer("b", processor="q")], allows_unlike=True)
    assert (found.outcome, found.host) == (Outcome.ADVICE, "b")
    assert "a run takes this host" in found.found


def test_clocks_that_differ_by_hours_are_a_fault_and_by_seconds_advice():
    links = [link("a", "b", ahead_s=-3.0), link("c", "a", ahead_s=-1e6)]  # none from a to c
    late, wrong = clocks([peer("a"), peer("b"), peer("c")], links)
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
    first, other = settings([peer("a"), peer("b")], ("digits", "params={a: 1}", "hosts=2"), 50051)
    assert first == (
        "holdfast coordinator digits 'params={a: 1}' --hosts 2 --address 10.0.0.1 --port 50051"
    )
    assert other.endswith("--token-file join.token --address 10.0.0.1")
