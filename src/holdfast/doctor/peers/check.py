"""Check: what the hosts of a job come to together."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.api.attended import Sidecar
from holdfast.doctor.finding import Conclusion, Finding, would_work
from holdfast.doctor.peers.compare import Peer, compare, settings
from holdfast.doctor.peers.gather import Gathered, gather
from holdfast.doctor.peers.report import Wanted
from holdfast.job.run_keys import RunKeys
from holdfast.launch.spawn import Spawned
from holdfast.runs.hosts.placement import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsCheck:
    """Check of the hosts of a job.

    Attributes:
        keys: Keys of the job, which has several hosts.
        wanted: Request to each host.
        placement: Its hosts: those of an engine, or hosts that join.
        words: The name of the job, and the overrides that the user has given.
        placing: The words that name the engine; none for hosts that join.
        folder: For the run of the check.
        say: Tells the user something.
        show: Shows a finding.
        forks: A fork server for this host, if one has been started.
        sidecar: Open during the run of the check.
    """

    keys: RunKeys
    wanted: Wanted
    placement: Placement
    words: tuple[str, ...]
    placing: tuple[str, ...]
    folder: Path
    say: Callable[[str], None]
    show: Callable[[Finding], None]
    forks: Spawned | None = None
    sidecar: Sidecar = nullcontext


def check_hosts(plan: HostsCheck) -> Conclusion:
    """Check all hosts of a job, and every pair.

    Raises:
        HoldfastError: This host cannot be joined, or the engine does not answer.
        Interrupted: A signal has ended the check.
    """
    gathered = gather(
        plan.wanted,
        plan.keys,
        plan.placement,
        plan.folder,
        plan.say,
        forks=plan.forks,
        sidecar=plan.sidecar,
    )
    own = "" if plan.placing else socket.gethostname()
    peers = [
        Peer(name=name, report=report, heard=gathered.heard(name))
        for name, report in gathered.told.items()
    ]
    peers.sort(key=lambda each: each.name != own)  # the first one is the measure for the others
    findings = list[Finding]()
    for each in _findings(gathered, peers, own):
        plan.show(each)
        findings.append(each)
    works = len(peers) == plan.keys.hosts and would_work(findings)
    commands = _commands(plan, peers) if works else ()
    return Conclusion(findings=tuple(findings), settings=tuple(commands))


def _findings(gathered: Gathered, peers: list[Peer], own: str) -> Iterator[Finding]:
    """All findings; those of the host called `own`, which is this one, name no host."""
    for peer in peers:
        for each in peer.report.findings:
            yield replace(each, host="" if peer.name == own else peer.name)
    yield from gathered.failures
    if peers:
        yield from compare(peers, gathered.links)


def _commands(plan: HostsCheck, peers: list[Peer]) -> list[str]:
    """The commands of a run on these hosts."""
    endpoint = plan.placement.endpoint
    assert endpoint is not None
    if plan.placing:
        return [shlex.join(["holdfast", "train", *plan.words, *plan.placing])]
    return settings(peers, plan.words, endpoint.port)
