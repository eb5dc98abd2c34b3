"""Placed: a check of the hosts that an engine reserves, led by a host that is none of them.

reserve, as for a run ─▶ holdfast doctor --join … on each host ─▶ reports, links
                                                                      │
conclusion ◀── trial runs, as `holdfast train --on` makes them ◀──────┘
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from holdfast.clusters.engines.engine import Engine
from holdfast.core.placement.replacing import Place, PlaceState
from holdfast.doctor.finding import Conclusion, Finding, would_work
from holdfast.doctor.peers.gathering import LOOK_S, Gathering, dismiss
from holdfast.doctor.peers.messages import WelcomeMessage
from holdfast.doctor.peers.reports import compare_hosts, take_reports
from holdfast.doctor.trial import Trial, over_hosts, run_trial
from holdfast.errors import HoldfastError
from holdfast.job import load
from holdfast.job.train_job import TrainJob
from holdfast.runs.hosts.endpoint import Endpoint
from holdfast.runs.hosts.placement import Placement
from holdfast.runs.run import LaunchOptions

END_TIMEOUT_S: Final = 30.0
"""How long the commands on the hosts may take to end."""


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
        self._key = secrets.token_hex(32)

    def conclusion(self) -> Conclusion:
        plan = self._plan
        gathering = Gathering(
            command="doctor",
            engine=plan.engine,
            endpoint=plan.endpoint,
            count=plan.job.hosts,
            folder=plan.folder,
            greeting=self._welcome,
            add=self._add,
        )
        with gathering.meeting() as meeting:
            hosts = gathering.gather(meeting)
            peers = take_reports(hosts, self._add)
            if peers:
                peers = compare_hosts(peers, hosts, None, plan.say, self._add)
            dismiss(hosts.values())
        if len(peers) == plan.job.hosts and would_work(self._findings):
            self._add(self._trial())
        works = would_work(self._findings)
        settings = (plan.command,) if works else ()
        return Conclusion(findings=tuple(self._findings), settings=settings)

    def _welcome(self, name: str) -> WelcomeMessage:
        self._plan.say(f"{name} has joined, and checks itself")
        return WelcomeMessage(job=load.dump(self._plan.job), name=name, key=self._key)

    def _trial(self) -> Finding:
        """Trial runs as the engine places them: on one host, and on all."""
        plan, count = self._plan, self._plan.job.hosts
        placement = Placement(engine=plan.engine, endpoint=plan.endpoint)
        plan.say(f"trial runs on one host and on {count}")

        def run(name: str, job: TrainJob) -> Trial:
            self._free_hosts()
            return run_trial(job, plan.folder / name, LaunchOptions(), placement=placement)

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
