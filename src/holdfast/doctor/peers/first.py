"""First: the host that leads a check of several, and is one of them."""

from __future__ import annotations

import secrets
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from holdfast.doctor import network
from holdfast.doctor.finding import Conclusion, Finding, fault, would_work
from holdfast.doctor.host import examine
from holdfast.doctor.needs import Needs
from holdfast.doctor.peers.compare import Peer, settings
from holdfast.doctor.peers.line import Line
from holdfast.doctor.peers.link_server import LinkServer
from holdfast.doctor.peers.meeting import Meeting
from holdfast.doctor.peers.messages import (
    ConclusionMessage,
    ReportMessage,
    TrialEndedMessage,
    TrialMessage,
    WelcomeMessage,
)
from holdfast.doctor.peers.reports import ANSWER_TIMEOUT_S, compare_hosts, take_reports
from holdfast.doctor.torch_report import TorchReport
from holdfast.doctor.trial import Trial, over_hosts, run_trial
from holdfast.doctor.versions import installed
from holdfast.errors import HoldfastError
from holdfast.job import load
from holdfast.job.train_job import TrainJob
from holdfast.launch.spawn import Spawned
from holdfast.linux.cores import usable_cores
from holdfast.rundir.run_directory import TOKEN
from holdfast.runs.hosts.endpoint import Endpoint, make_secrets, make_token
from holdfast.runs.hosts.placement import Placement
from holdfast.runs.run import LaunchOptions
from holdfast.wire.tls import Role

JOIN_TIMEOUT_S: Final = 900.0
"""How long the other hosts may take to join: people paste the line there."""
_FIRST: Final = "first"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is going to be checked.

    Attributes:
        needs: Of this host, which is the first.
        endpoint: Where the others join.
        words: The name of the job, and the overrides that the user has given.
        folder: For keys and the trial run; it is made, and removed at the end.
        say: Tells the user something.
        show: Shows a finding.
    """

    needs: Needs
    endpoint: Endpoint
    words: tuple[str, ...]
    folder: Path
    say: Callable[[str], None]
    show: Callable[[Finding], None]


def lead(plan: Plan, forks: Spawned | None) -> Conclusion:
    """Check this host and all others, and every pair.

    Raises:
        HoldfastError: This host cannot be joined.
        Interrupted: A signal has ended the check.
    """
    plan.folder.mkdir(parents=True, mode=0o700)
    try:
        return _Lead(plan).check(forks)
    finally:
        shutil.rmtree(plan.folder, ignore_errors=True)


class _Lead:
    def __init__(self, plan: Plan) -> None:
        self._plan, self._findings = plan, list[Finding]()
        self._key = secrets.token_bytes(32)
        self._job = plan.needs.job

    def check(self, forks: Spawned | None) -> Conclusion:
        plan = self._plan
        for each in network.ports(plan.needs.ports, plan.endpoint.address):
            self._add(each)
        if not would_work(self._findings):
            return self._conclusion([])
        meeting = Meeting(plan.folder, plan.endpoint, self._job.hosts - 1, self._welcome)
        with meeting:
            plan.say(meeting.instructions())
            credentials = meeting.authority.issue(_FIRST, Role.DATA)
            with LinkServer(plan.endpoint.address, credentials, self._key) as server:
                own = self._examine(forks, server.port)
                if not meeting.await_hosts(JOIN_TIMEOUT_S):
                    self._add(_missing(len(meeting.lines) + 1, self._job.hosts))
                hosts = _named(dict(meeting.lines))
                peers = self._peers(own, hosts, server)
        if self._may_try(peers):
            self._add(self._trial(hosts))
        conclusion = self._conclusion(peers)
        for line in hosts.values():
            with suppress(HoldfastError):
                line.send(
                    ConclusionMessage(findings=conclusion.findings, settings=conclusion.settings)
                )
            line.close()
        return conclusion

    def _welcome(self, name: str, line: Line) -> None:
        self._plan.say(f"{_short(name)} has joined, and checks itself")
        line.send(WelcomeMessage(job=load.dump(self._job), name=_short(name), key=self._key.hex()))

    def _examine(self, forks: Spawned | None, port: int) -> ReportMessage:
        address, report = self._plan.endpoint.address, None
        needs = replace(self._plan.needs, ports={})  # they are used for this check
        for each in examine(needs, address, forks):
            if isinstance(each, TorchReport):
                report = each
            else:
                self._add(each)
        return ReportMessage(
            address=address,
            port=port,
            versions=installed(),
            torch=report,
            cores=usable_cores(),
            findings=(),
        )

    def _peers(self, own: ReportMessage, hosts: dict[str, Line], server: LinkServer) -> list[Peer]:
        """Take the reports of all hosts, and compare them and their links."""
        me = Peer(name=socket.gethostname(), report=own, ahead_s=0.0, heard=frozenset())
        peers = [me, *take_reports(hosts, self._add)]
        return compare_hosts(peers, hosts, server, self._plan.say, self._add)

    def _may_try(self, peers: Sequence[Peer]) -> bool:
        """Whether nothing has been found for which a run over all hosts would fail."""
        return len(peers) == self._job.hosts and would_work(self._findings)

    def _trial(self, hosts: Mapping[str, Line]) -> Finding:
        """Run a trial over all hosts, and compare its weights with those of one host."""
        count = len(hosts) + 1
        self._plan.say(f"trial run over {count} hosts")

        def alone(job: TrainJob) -> Trial:
            return run_trial(job, self._plan.folder / "alone", LaunchOptions())

        return over_hosts(self._job, count, alone, partial(self._run_together, hosts))

    def _run_together(self, hosts: Mapping[str, Line], job: TrainJob) -> Trial:
        endpoint, path = self._plan.endpoint, self._plan.folder / "together"

        def invite(run_dir: Path) -> None:
            make_secrets(run_dir, endpoint)
            make_token(run_dir, len(hosts))
            token = (run_dir / TOKEN).read_text(encoding="ascii").strip()
            for line in hosts.values():
                line.send(TrialMessage(coordinator=endpoint.public, token=token))

        try:
            done = run_trial(job, path, LaunchOptions(), invite, Placement(endpoint=endpoint))
        finally:
            problems = [
                f"{name}: {problem}" for name, line in hosts.items() if (problem := _ended(line))
            ]
        if problems:
            raise HoldfastError("; ".join(problems))
        return done

    def _conclusion(self, peers: Sequence[Peer]) -> Conclusion:
        works = would_work(self._findings) and len(peers) == self._job.hosts
        shown = settings(peers, self._plan.words, self._plan.endpoint.port) if works else []
        return Conclusion(findings=tuple(self._findings), settings=tuple(shown))

    def _add(self, finding: Finding) -> None:
        self._findings.append(finding)
        self._plan.show(finding)


def _short(name: str) -> str:
    """The host name in the name that a host got when it joined."""
    return name.rpartition("-")[0]


def _named(lines: Mapping[str, Line]) -> dict[str, Line]:
    """The connections by what hosts are called: their host names, where these differ."""
    names = [socket.gethostname(), *map(_short, lines)]
    return {
        short if names.count(short := _short(name)) == 1 else name: line
        for name, line in lines.items()
    }


def _ended(line: Line) -> str:
    """Why a host's part in the trial has failed; empty if it has not."""
    try:
        return line.expect(TrialEndedMessage, ANSWER_TIMEOUT_S).problem
    except HoldfastError as error:
        return str(error)


def _missing(count: int, wanted: int) -> Finding:
    return fault(
        "hosts",
        f"{count} of {wanted} after {JOIN_TIMEOUT_S:.0f} s",
        "run the line above on the others, and look there why they cannot join",
    )
