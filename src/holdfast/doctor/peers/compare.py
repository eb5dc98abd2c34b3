"""Compare: what the reports and links of all hosts mean together. No I/O."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from holdfast.doctor.finding import Finding, Outcome, advice, fault, ok, would_work
from holdfast.doctor.peers.report import HostReport, LinkReport, Reach

DECISIVE: Final = ("holdfast", "torch")
"""Packages of which all hosts must have the same version."""
ADVISED_SKEW_S: Final = 1.0
"""From here on the events of two hosts are in the wrong order."""
MAX_SKEW_S: Final = 12 * 3600.0
"""From here on certificates may count as not valid yet: they are dated back by a day."""
SLOW_SHARE: Final = 1 / 3
"""A link with less than this share of the median rate holds all hosts up."""
SLOW_BYTES_PER_S: Final = 12.5e6
"""100 Mbit/s: from here on down, the network is likely to take longer than computing."""
FAR_S: Final = 0.02
"""A latency from which on every step waits for it noticeably."""
_FAR_TIMES: Final = 5
"""And so many times the median, for one link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One host.

    Attributes:
        name: Name in findings.
        report: Report of the host about itself.
        heard: The hosts whose datagrams it got.
    """

    name: str
    report: HostReport
    heard: frozenset[str]


def compare(
    peers: Sequence[Peer], links: Sequence[LinkReport], *, allows_unlike: bool
) -> Iterator[Finding]:
    """Comparison of the hosts; the first one is the measure for the others.

    Args:
        peers: The hosts.
        links: Their connections.
        allows_unlike: True if the job lets hosts compute other bits.
    """
    yield from versions(peers)
    unlike = list(numerics(peers, allows_unlike=allows_unlike))
    yield from unlike
    if would_work(unlike) and not allows_unlike:
        yield from weights(peers)
    yield from clocks(peers, links)
    yield from reached(peers, links)
    yield from speeds([link for link in links if link.reach is Reach.REACHED])


def versions(peers: Sequence[Peer]) -> Iterator[Finding]:
    """Check that all hosts have the same Python and packages."""
    first, *others = peers
    alike = True
    for other in others:
        theirs = other.report.versions
        ours = first.report.versions
        unlike = {
            name: f"{name} {theirs.get(name) or 'missing'}, not {version or 'missing'}"
            for name, version in ours.items()
            if theirs.get(name, "") != version
        }
        if not unlike:
            continue
        alike = False
        makes = fault if any(name in unlike for name in DECISIVE) else advice
        yield _at(
            other,
            makes(
                "same versions",
                f"{', '.join(unlike.values())} as on {first.name}",
                "install the same versions on all hosts, such as by pip install -c constraints.txt",
            ),
        )
    if alike:
        yield ok("same versions", f"Python and {len(first.report.versions) - 1} packages")


def numerics(peers: Sequence[Peer], *, allows_unlike: bool = False) -> Iterator[Finding]:
    """Check that all hosts compute the same bits."""
    known = [(peer, peer.report.torch) for peer in peers if peer.report.torch is not None]
    if not known:
        return
    (first, wanted), *others = known
    alike = True
    for other, report in others:
        unlike = [
            f"{name} {report.numerics.get(name)}, not {value}"
            for name, value in wanted.numerics.items()
            if report.numerics.get(name) != value
        ]
        if not unlike:
            continue
        alike = False
        if allows_unlike:
            found = f"{', '.join(unlike)} as on {first.name}; a run takes this host"
            remedy = "expect weights that depend on which host computes which shard"
            yield _at(other, advice("same bits", found, remedy))
            continue
        variables = [each.split()[0] for each in unlike if each.split()[0].isupper()]
        if variables:
            remedy = f"set {' and '.join(variables)} alike on all hosts, or unset them"
        elif report.kernels == wanted.kernels:
            remedy = "set numerics=portable: both compute the same with common kernels"
        else:
            remedy = "set numerics=portable and check again, or numerics=mixed"
        found = f"{', '.join(unlike)} as on {first.name}; a run refuses this host"
        yield _at(other, fault("same bits", found, remedy))
    if alike:
        names = [wanted.numerics.get(each, "") for each in ("processor", "capability")]
        yield ok("same bits", ", ".join(filter(None, names)) or "same kernels")


def weights(peers: Sequence[Peer]) -> Iterator[Finding]:
    """Check that the trial runs of all hosts have ended with the same weights."""
    known = [each for each in peers if each.report.weights]
    unlike = [each for each in known if each.report.weights != known[0].report.weights]
    for each in unlike:
        found = f"its trial run ends with other weights than that of {known[0].name}"
        remedy = "set numerics=portable, or use hosts of one kind"
        yield _at(each, fault("same weights", found, remedy))
    if known and not unlike:
        yield ok("same weights", f"the trial runs of {len(known)} hosts end with the same")


def clocks(peers: Sequence[Peer], links: Sequence[LinkReport]) -> Iterator[Finding]:
    """Check that the clocks agree, as far as the links to the first host have told."""
    remedy = "synchronize the clocks of all hosts (chronyd, systemd-timesyncd or ntpd)"
    first, *others = peers
    ahead_s = {
        **{each.source: -each.ahead_s for each in links if each.target == first.name},
        **{each.target: each.ahead_s for each in links if each.source == first.name},
    }
    wrong = [each for each in others if abs(ahead_s.get(each.name, 0.0)) > ADVISED_SKEW_S]
    for each in wrong:
        seconds = ahead_s[each.name]
        makes = fault if abs(seconds) > MAX_SKEW_S else advice
        side = "ahead of" if seconds > 0 else "behind"
        found = f"{abs(seconds):,.1f} s {side} that of {first.name}"
        yield _at(each, makes("same time", found, remedy))
    if ahead_s and not wrong:
        most = max(map(abs, ahead_s.values()))
        yield ok("same time", f"clocks differ by {most:.3f} s at most")


def reached(peers: Sequence[Peer], links: Sequence[LinkReport]) -> Iterator[Finding]:
    """Check that all hosts reach each other, and if not, why."""
    by_name = {peer.name: peer for peer in peers}
    by_pair = {(link.source, link.target): link for link in links}
    for link in links:
        if link.reach is Reach.REACHED:
            continue
        source = by_name[link.source]
        target = by_name[link.target]
        back = by_pair.get((link.target, link.source))
        yield _unreached(source, target, link, back)


def _unreached(source: Peer, target: Peer, link: LinkReport, back: LinkReport | None) -> Finding:
    where = f"{target.name} at {target.report.address}"
    found = f"{source.name} cannot connect to {where}: {link.why}"
    works_back = back is not None and back.reach is Reach.REACHED
    arrives = source.name in target.heard
    answers = target.name in source.heard
    match link.reach:
        case Reach.SILENT if arrives and not answers and not works_back:
            found += f"; packets from {source.name} arrive, those of {target.name} do not"
            remedy = (
                f"let {source.name} receive packets of {target.name} (its firewall, or the route "
                f"from {target.name})"
            )
        case Reach.SILENT if answers and not arrives and not works_back:
            found += f"; packets of {target.name} arrive, those from {source.name} do not"
            remedy = f"let {target.name} receive packets of {source.name} (its firewall or a route)"
        case Reach.SILENT | Reach.REFUSED:
            found += "; the other direction works" if works_back else ""
            remedy = (
                f"let the firewall of {target.name} pass TCP of {source.name} to every port, or "
                f"name an address of {target.name} that {source.name} reaches by --address there"
            )
        case Reach.NO_ROUTE:
            remedy = f"name an address of {target.name} that {source.name} reaches by --address"
        case _:
            found += "; something else answers there"
            remedy = f"name the own address of {target.name} by --address there"
    return Finding(
        check="links", outcome=Outcome.FAULT, found=found, remedy=remedy, host=source.name
    )


def speeds(links: Sequence[LinkReport]) -> Iterator[Finding]:
    """Speed of the links, and those that hold the others up."""
    if not links:
        return
    rates = [link.bytes_per_s for link in links]
    latencies = [link.latency_s for link in links]
    least = max(SLOW_BYTES_PER_S, SLOW_SHARE * statistics.median(rates))
    most_s = max(FAR_S, _FAR_TIMES * statistics.median(latencies))
    slow = [link for link in links if link.bytes_per_s < least]
    far = [link for link in links if link.latency_s > most_s]
    yield ok(
        "links",
        f"{len(links)} reached, {_bits(min(rates))} to {_bits(max(rates))}, "
        f"{1e3 * min(latencies):.2f} to {1e3 * max(latencies):.2f} ms",
    )
    for link in slow:
        yield advice(
            "bandwidth",
            f"{link.source} sends {_bits(link.bytes_per_s)} to {link.target}; the median is "
            f"{_bits(statistics.median(rates))}",
            "use a faster network between them (another --address), or fewer hosts: each step "
            "waits for the slowest link",
        )
    for link in far:
        yield advice(
            "latency",
            f"{1e3 * link.latency_s:.1f} ms from {link.source} to {link.target} and back",
            "use hosts that are near each other; raise heartbeat.timeout_s if this varies",
        )


def settings(peers: Sequence[Peer], words: Sequence[str], port: int) -> list[str]:
    """A command for each host, with the addresses that have worked.

    Args:
        peers: The hosts.
        words: The name of the job, and the overrides that the user has given.
        port: Port at which hosts join.
    """
    at, *addresses = (each.report.address.rpartition(":")[0] for each in peers)
    words = [word for word in words if not word.startswith("hosts=")]
    coordinator = ["holdfast", "coordinator", *words, "--hosts", str(len(peers))]
    agent = ["holdfast", "agent", "--join", f"{at}:{port}", "--token-file", "join.token"]
    return [
        shlex.join([*coordinator, "--address", at, "--port", str(port)]),
        *(shlex.join([*agent, "--address", each]) for each in addresses),
    ]


def _at(peer: Peer, finding: Finding) -> Finding:
    return replace(finding, host=peer.name)


def _bits(bytes_per_s: float) -> str:
    bits = 8 * bytes_per_s
    return f"{bits / 1e9:.1f} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.0f} Mbit/s"
