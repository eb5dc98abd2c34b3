"""First: the host that leads a check of several, and is one of them."""

from __future__ import annotations

import secrets
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from holdfast.doctor import network
from holdfast.doctor.finding import Finding, fault, ok, would_work
from holdfast.doctor.host import examine
from holdfast.doctor.needs import Needs
from holdfast.doctor.peers.compare import Peer, compare, settings
from holdfast.doctor.peers.line import Line
from holdfast.doctor.peers.link import Link
from holdfast.doctor.peers.link_server import LinkServer
from holdfast.doctor.peers.meeting import Meeting
from holdfast.doctor.peers.messages import (
    ConclusionMessage,
    HeardMessage,
    MeasuredMessage,
    MeasureMessage,
    ReportMessage,
    TimeMessage,
    TrialEndedMessage,
    TrialMessage,
    WelcomeMessage,
)
from holdfast.doctor.peers.rounds import rounds
from holdfast.doctor.torch_report import TorchReport
from holdfast.doctor.trial import STEPS, Trial, run_trial, trial_job
from holdfast.doctor.versions import installed
from holdfast.errors import HoldfastError, Interrupted
from holdfast.job import load
from holdfast.job.train_job import TrainJob
from holdfast.launch.spawn import Spawned
from holdfast.linux.cores import usable_cores
from holdfast.observe.run_dir import TOKEN
from holdfast.runs.endpoint import Endpoint, make_secrets, make_token
from holdfast.wire.tls import Role

JOIN_TIMEOUT_S: Final = 900.0
"""How long the other hosts may take to join: people paste the line there."""
REPORT_TIMEOUT_S: Final = 300.0
ANSWER_TIMEOUT_S: Final = 90.0
"""How long a host may take for one answer."""
QUESTIONS: Final = 5
"""How often a clock is asked for the time; the quickest answer counts."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What a check has come to.

    Attributes:
        findings: Of all hosts.
        settings: A command for each host, with what has worked; none if a run would not.
    """

    findings: tuple[Finding, ...]
    settings: tuple[str, ...]


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
        me = socket.gethostname()
        peers = [Peer(name=me, report=own, ahead_s=0.0, heard=frozenset())]
        for name, line in list(hosts.items()):
            try:
                report = line.expect(ReportMessage, REPORT_TIMEOUT_S)
                ahead_s = _ahead(line)
            except HoldfastError as error:
                self._add(_lost(name, error))
                line.close()
                del hosts[name]
                continue
            for each in report.findings:
                self._add(replace(each, host=name))
            peers.append(Peer(name=name, report=report, ahead_s=ahead_s, heard=frozenset()))
        try:
            links = self._links(peers, hosts, server)
            peers = [replace(each, heard=_heard(each, hosts, server)) for each in peers]
        except HoldfastError as error:
            self._add(fault("links", f"measuring them failed: {error}", "check again"))
            return peers
        for each in compare(peers, links):
            self._add(each)
        return peers

    def _links(
        self, peers: Sequence[Peer], hosts: Mapping[str, Line], server: LinkServer
    ) -> list[Link]:
        """Every pair of hosts, in both directions."""
        self._plan.say(f"measuring {len(peers) * (len(peers) - 1)} links")

        def measure(pair: tuple[int, int]) -> Link:
            source, target = (peers[each] for each in pair)
            at = target.report
            if source.name not in hosts:
                return server.measure(source.name, target.name, at.address, at.port)
            line = hosts[source.name]
            line.send(MeasureMessage(target=target.name, address=at.address, port=at.port))
            return line.expect(MeasuredMessage, ANSWER_TIMEOUT_S).link

        with ThreadPoolExecutor(max(1, len(peers) // 2)) as pool:
            return [link for each in rounds(len(peers)) for link in pool.map(measure, each)]

    def _may_try(self, peers: Sequence[Peer]) -> bool:
        """Whether nothing has been found for which a run over all hosts would fail."""
        return len(peers) == self._job.hosts and would_work(self._findings)

    def _trial(self, hosts: Mapping[str, Line]) -> Finding:
        """Run a trial over all hosts, and compare its weights with those of one host."""
        count, folder = len(hosts) + 1, self._plan.folder
        self._plan.say(f"trial run over {count} hosts")
        try:
            alone = run_trial(trial_job(self._job, 1, count), folder / "alone", None)
            together = self._run_together(trial_job(self._job, count, count), hosts)
        except Interrupted:
            raise
        except HoldfastError as error:
            return fault(
                "trial run",
                f"{STEPS} steps over {count} hosts failed: {error}",
                "see the findings above; if there are none, report this with the output of all",
            )
        if not self._job.merges_shards and alone.weights != together.weights:
            return fault(
                "trial run",
                f"the weights of {count} hosts differ from those of one",
                "set numerics=portable, or use hosts of one kind",
            )
        same = "" if self._job.merges_shards else ", with the weights of one host"
        return ok(
            "trial run",
            f"{count} hosts summed the gradients of {STEPS} steps in {together.seconds:.1f} s"
            f"{same}",
        )

    def _run_together(self, job: TrainJob, hosts: Mapping[str, Line]) -> Trial:
        endpoint, path = self._plan.endpoint, self._plan.folder / "together"

        def invite(run_dir: Path) -> None:
            make_secrets(run_dir, endpoint)
            make_token(run_dir, len(hosts))
            token = (run_dir / TOKEN).read_text(encoding="ascii").strip()
            for line in hosts.values():
                line.send(TrialMessage(coordinator=endpoint.public, token=token))

        try:
            done = run_trial(job, path, None, endpoint, invite)
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


def _heard(peer: Peer, hosts: Mapping[str, Line], server: LinkServer) -> frozenset[str]:
    if peer.name not in hosts:
        return frozenset(server.heard)
    hosts[peer.name].send(HeardMessage())
    return frozenset(hosts[peer.name].expect(HeardMessage, ANSWER_TIMEOUT_S).hosts)


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


def _lost(name: str, error: HoldfastError) -> Finding:
    return replace(fault("hosts", str(error), "look on that host, and check again"), host=name)
