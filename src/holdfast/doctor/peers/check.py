"""Check: the findings of the hosts of a job together."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.api.attended import Sidecar
from holdfast.doctor.finding import Conclusion, Finding, would_work
from holdfast.doctor.peers.compare import Peer, compare, settings
from holdfast.doctor.peers.gather import Gathered, gather
from holdfast.doctor.peers.report import Wanted
from holdfast.job import load
from holdfast.job.train_job import TrainJob
from holdfast.launch.spawn import Spawned
from holdfast.runs.hosts.placement import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsCheck:
    """Check of the hosts of a job.

    Attributes:
        words: The name of the job, and the overrides that the user has given.
        folder: For the run of the check.
        show: Shows a finding.
    """

    words: tuple[str, ...]
    folder: Path
    show: Callable[[Finding], None]

    def run(
        self,
        job: TrainJob,
        placement: Placement,
        placing: Sequence[str] = (),
        *,
        forks: Spawned | None = None,
        sidecar: Sidecar = nullcontext,
    ) -> Conclusion:
        """Check all hosts of a job, and every pair.

        Args:
            job: The job, which has several hosts.
            placement: The hosts: those of an engine, or hosts that join.
            placing: The words that name the engine; none for hosts that join.
            forks: A fork server for this host, if one has been started.
            sidecar: Open during the run of the check.

        Raises:
            HoldfastError: This host cannot be joined, or the engine does not answer.
            Interrupted: A signal has ended the check.
        """
        wanted = Wanted(job=load.dump(job))
        gathered = gather(wanted, job, placement, self.folder, forks=forks, sidecar=sidecar)
        own = "" if placing else socket.gethostname()
        peers = [
            Peer(name=name, report=report, heard=gathered.heard(name))
            for name, report in gathered.told.items()
        ]
        peers.sort(key=lambda each: each.name != own)  # the first is the measure for the others
        findings = list[Finding]()
        for each in _findings(gathered, peers, own, allows_unlike=job.allows_unlike_hosts):
            self.show(each)
            findings.append(each)
        works = len(peers) == job.hosts and would_work(findings)
        commands = self._commands(placement, placing, peers) if works else []
        return Conclusion(findings=tuple(findings), settings=tuple(commands))

    def _commands(
        self, placement: Placement, placing: Sequence[str], peers: list[Peer]
    ) -> list[str]:
        """The commands of a run on these hosts."""
        if placing:
            return [shlex.join(["holdfast", "train", *self.words, *placing])]
        assert placement.endpoint is not None
        return settings(peers, self.words, placement.endpoint.port)


def _findings(
    gathered: Gathered, peers: list[Peer], own: str, *, allows_unlike: bool
) -> Iterator[Finding]:
    """All findings; those of the host called `own`, which is this one, name no host."""
    for peer in peers:
        for each in peer.report.findings:
            yield replace(each, host="" if peer.name == own else peer.name)
    yield from gathered.failures
    if peers:
        yield from compare(peers, gathered.links, allows_unlike=allows_unlike)
