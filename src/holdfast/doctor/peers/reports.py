"""Reports: what the leader of a check asks the other hosts for, and compares."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from holdfast.doctor.finding import Finding, fault
from holdfast.doctor.peers.compare import Peer, compare
from holdfast.doctor.peers.line import Line
from holdfast.doctor.peers.link import Link, Reach
from holdfast.doctor.peers.link_server import LinkServer
from holdfast.doctor.peers.messages import (
    HeardMessage,
    MeasuredMessage,
    MeasureMessage,
    ReportMessage,
    TimeMessage,
)
from holdfast.doctor.peers.rounds import rounds
from holdfast.errors import HoldfastError

REPORT_TIMEOUT_S: Final = 300.0
ANSWER_TIMEOUT_S: Final = 90.0
"""How long a host may take for one answer."""
QUESTIONS: Final = 5
"""How often a clock is asked for the time; the quickest answer counts."""

Add = Callable[[Finding], None]


def take_reports(hosts: dict[str, Line], add: Add) -> list[Peer]:
    """What hosts have found on themselves.

    Args:
        hosts: The connections to them by their names; one that reports nothing is removed.
        add: Takes findings.
    """
    peers = []
    for name, line in list(hosts.items()):
        try:
            report = line.expect(ReportMessage, REPORT_TIMEOUT_S)
            ahead_s = _ahead(line)
        except HoldfastError as error:
            lost = fault("hosts", str(error), "look on that host, and check again")
            add(replace(lost, host=name))
            line.close()
            del hosts[name]
            continue
        for each in report.findings:
            add(replace(each, host=name))
        peers.append(Peer(name=name, report=report, ahead_s=ahead_s, heard=frozenset()))
    return peers


def compare_hosts(
    peers: Sequence[Peer],
    hosts: Mapping[str, Line],
    server: LinkServer | None,
    say: Callable[[str], None],
    add: Add,
) -> list[Peer]:
    """Measure every link, and compare all hosts; returns them with what they have heard.

    Args:
        peers: The hosts.
        hosts: The connections to them by their names.
        server: That of this host, if it is one of them.
        say: Tells the user something.
        add: Takes findings.
    """
    places = {each.name: (each.report.address, each.report.port) for each in peers}
    links = measure_links(places, hosts, server, say)
    try:
        if lost := [each for each in links if each.reach is Reach.LOST]:
            raise HoldfastError(f"{lost[0].source}: {lost[0].why}")
        peers = [replace(each, heard=_heard(each, hosts, server)) for each in peers]
    except HoldfastError as error:
        add(fault("links", f"measuring them failed: {error}", "check again"))
        return list(peers)
    for each in compare(peers, links):
        add(each)
    return list(peers)


def measure_links(
    places: Mapping[str, tuple[str, int]],
    hosts: Mapping[str, Line],
    server: LinkServer | None,
    say: Callable[[str], None],
) -> list[Link]:
    """Measure every pair of hosts, in both directions.

    Args:
        places: Address and port where each host accepts links, by its name.
        hosts: The connections to them by their names; that of a host that fails is closed.
        server: That of this host, if it is one of them.
        say: Tells the user something.
    """
    say(f"measuring {len(places) * (len(places) - 1)} links")
    names = list(places)

    def measure(pair: tuple[int, int]) -> Link:
        source, target = (names[each] for each in pair)
        address, port = places[target]
        if source not in hosts:
            assert server is not None
            return server.measure(source, target, address, port)
        line = hosts[source]
        try:
            line.send(MeasureMessage(target=target, address=address, port=port))
            return line.expect(MeasuredMessage, ANSWER_TIMEOUT_S).link
        except HoldfastError as error:
            line.close()  # a late answer would count as that to the next question
            return Link(source=source, target=target, reach=Reach.LOST, why=str(error))

    with ThreadPoolExecutor(max(1, len(names) // 2)) as pool:
        return [link for each in rounds(len(names)) for link in pool.map(measure, each)]


def _ahead(line: Line) -> float:
    """How far the clock of a host is ahead, seconds."""
    answers = []
    for _ in range(QUESTIONS):
        asked, began = time.time(), time.monotonic()
        line.send(TimeMessage())
        told = line.expect(TimeMessage, ANSWER_TIMEOUT_S).unix_s
        took = time.monotonic() - began
        answers.append((took, told - asked - took / 2))
    return min(answers)[1]


def _heard(peer: Peer, hosts: Mapping[str, Line], server: LinkServer | None) -> frozenset[str]:
    if peer.name not in hosts:
        assert server is not None
        return frozenset(server.heard)
    hosts[peer.name].send(HeardMessage())
    return frozenset(hosts[peer.name].expect(HeardMessage, ANSWER_TIMEOUT_S).hosts)
