"""Placed: a check of the hosts that an engine reserves, led by a host that is none of them.

reserve, as for a run ─▶ holdfast doctor --join … on each host ─▶ reports, links
                                                                      │
conclusion ◀── trial runs, as `holdfast train --on` makes them ◀──────┘
"""

from __future__ import annotations

import itertools
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from holdfast.coordinator import tokens
from holdfast.core.replacing import Place, PlaceState
from holdfast.doctor.finding import Conclusion, Finding, fault, would_work
from holdfast.doctor.peers.line import Line
from holdfast.doctor.peers.meeting import Meeting
from holdfast.doctor.peers.messages import ConclusionMessage, WelcomeMessage
from holdfast.doctor.peers.reports import compare_hosts, take_reports
from holdfast.doctor.trial import Trial, over_hosts, run_trial
from holdfast.engines.engine import Engine, Launch
from holdfast.errors import HoldfastError
from holdfast.job import load
from holdfast.job.train_job import TrainJob
from holdfast.observe.run_dir import SECRETS
from holdfast.runs.endpoint import Endpoint
from holdfast.runs.run import LaunchOptions

JOIN_TIMEOUT_S: Final = 150.0
"""How long hosts may take to join: an engine gives up an agent that waits for a host before that.
"""
END_TIMEOUT_S: Final = 30.0
"""How long the commands on the hosts may take to end."""
LOOK_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPlan:
    """What is going to be checked.

    Attributes:
        job: The job.
        engine: Has reserved the hosts.
        endpoint: Where they join.
        command: That of a run.
        folder: For keys and the trial runs; it is made, and removed at the end.
        say: Tells the user something.
        show: Shows a finding.
    """

    job: TrainJob
    engine: Engine
    endpoint: Endpoint
    command: str
    folder: Path
    say: Callable[[str], None]
    show: Callable[[Finding], None]


def check_placed(plan: PlacedPlan) -> Conclusion:
    """Check all hosts, and every pair.

    Raises:
        HoldfastError: This host cannot be joined, or the engine does not answer.
        Interrupted: A signal has ended the check.
    """
    plan.folder.mkdir(parents=True, mode=0o700)
    try:
        return _Check(plan).conclusion()
    finally:
        shutil.rmtree(plan.folder, ignore_errors=True)


class _Check:
    def __init__(self, plan: PlacedPlan) -> None:
        self._plan, self._findings = plan, list[Finding]()
        self._names = [f"doctor-{number + 1}" for number in range(plan.job.hosts)]
        self._key = secrets.token_hex(32)

    def conclusion(self) -> Conclusion:
        plan = self._plan
        with Meeting(plan.folder, plan.endpoint, plan.job.hosts, lambda *_: None) as meeting:
            for name in self._names:
                plan.engine.start(self._launch(name, meeting))
            hosts = self._await_hosts(meeting)
            peers = take_reports(hosts, self._add)
            if peers:
                peers = compare_hosts(peers, hosts, None, plan.say, self._add)
            for line in hosts.values():
                with suppress(HoldfastError):
                    line.send(ConclusionMessage(findings=(), settings=()))
                line.close()
        if len(peers) == plan.job.hosts and would_work(self._findings):
            self._add(self._trial())
        works = would_work(self._findings)
        settings = (plan.command,) if works else ()
        return Conclusion(findings=tuple(self._findings), settings=settings)

    def _launch(self, name: str, meeting: Meeting) -> Launch:
        folder = self._plan.folder / SECRETS
        token = tokens.issue(folder, meeting.authority, time.time())
        join = ("doctor", "--join", self._plan.endpoint.public, "--placed", name)
        return Launch(name=name, arguments=join, token=token.text)

    def _await_hosts(self, meeting: Meeting) -> dict[str, Line]:
        """Welcome each host that joins; returns the connections by what the engine calls hosts."""
        hosts: dict[str, Line] = {}
        waiting, deadline = list(self._names), time.monotonic() + JOIN_TIMEOUT_S
        while waiting and time.monotonic() < deadline:
            meeting.await_hosts(LOOK_S)
            joined = {name.rpartition("-")[0]: line for name, line in meeting.lines.items()}
            for part, place in self._places(waiting):
                if part in joined and place.host:
                    name = _unlike(place.host, hosts)
                    hosts[name] = joined[part]
                    self._welcome(name, joined[part])
                    waiting.remove(part)
                elif place.state is PlaceState.ENDED:
                    self._add(_not_joined(place, place.cause or "it ended before it joined"))
                    waiting.remove(part)
        for _, place in self._places(waiting):
            self._add(_not_joined(place, f"not there after {JOIN_TIMEOUT_S:.0f} s"))
        return hosts

    def _places(self, names: Sequence[str]) -> list[tuple[str, Place]]:
        places = self._plan.engine.places()
        return [(name, places[name]) for name in names]

    def _welcome(self, name: str, line: Line) -> None:
        self._plan.say(f"{name} has joined, and checks itself")
        with suppress(HoldfastError):  # it has gone, so its report is missed
            line.send(WelcomeMessage(job=load.dump(self._plan.job), name=name, key=self._key))

    def _trial(self) -> Finding:
        """Trial runs as the engine places them: on one host, and on all."""
        plan, count = self._plan, self._plan.job.hosts
        options = LaunchOptions(engine=plan.engine, endpoint=plan.endpoint)
        plan.say(f"trial runs on one host and on {count}")

        def run(name: str, job: TrainJob) -> Trial:
            self._free_hosts()
            return run_trial(job, plan.folder / name, options)

        return over_hosts(plan.job, count, partial(run, "alone"), partial(run, "together"))

    def _free_hosts(self) -> None:
        """End all that was started on the hosts.

        Raises:
            HoldfastError: It does not end.
        """
        engine, deadline = self._plan.engine, time.monotonic() + END_TIMEOUT_S
        for name in engine.places():
            engine.stop(name)
        while rest := _still_there(engine.places()):
            if time.monotonic() > deadline:
                raise HoldfastError(
                    f"{', '.join(rest)}: what was started there does not end within "
                    f"{END_TIMEOUT_S:.0f} s; look for holdfast there"
                )
            time.sleep(LOOK_S)

    def _add(self, finding: Finding) -> None:
        self._findings.append(finding)
        self._plan.show(finding)


def _still_there(places: Mapping[str, Place]) -> list[str]:
    """The hosts of those that have not ended."""
    return [
        place.host or name for name, place in places.items() if place.state is not PlaceState.ENDED
    ]


def _unlike(host: str, names: Collection[str]) -> str:
    """A name that no other part has: an engine may place several on one host."""
    numbered = (f"{host}-{number}" for number in itertools.count(2))
    return next(name for name in itertools.chain([host], numbered) if name not in names)


def _not_joined(place: Place, why: str) -> Finding:
    remedy = "look on that host for what holds it up, and check again"
    return replace(fault("hosts", why, remedy), host=place.host)
