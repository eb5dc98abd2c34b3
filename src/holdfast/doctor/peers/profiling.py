"""Profiling: the hardware of the hosts that an engine reserves, and the links between them.

reserve, as for a run ─▶ holdfast profile --join … on each host ─▶ profiles, then links
"""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from holdfast.clusters.engines.engine import Engine
from holdfast.doctor.finding import Finding, fault
from holdfast.doctor.peers.gathering import Gathering, dismiss, unlike
from holdfast.doctor.peers.line import Line
from holdfast.doctor.peers.link import Link, Reach
from holdfast.doctor.peers.messages import ProfiledMessage, ProfileMessage
from holdfast.doctor.peers.reports import measure_links
from holdfast.errors import HoldfastError
from holdfast.hardware.profile import HostLink, HostProfile
from holdfast.hardware.profile_file import Profiles
from holdfast.runs.hosts.endpoint import Endpoint

PROFILE_TIMEOUT_S: Final = 180.0
"""How long all hosts may take to measure themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilingPlan:
    """What is going to be measured.

    Attributes:
        engine: Has reserved the hosts.
        endpoint: Where they join.
        count: How many there are.
        path: The directory of each host whose disk is measured; empty for where agents keep theirs.
        say: Tells the user something.
        show: Shows what has failed.
    """

    engine: Engine
    endpoint: Endpoint
    count: int
    path: str
    say: Callable[[str], None]
    show: Callable[[Finding], None]


def profile_placed(plan: ProfilingPlan) -> Profiles:
    """Profile all hosts, and every pair; without those that have failed, which are shown.

    Raises:
        HoldfastError: This host cannot be joined, or the engine does not answer.
    """
    key = secrets.token_hex(32)

    def greet(name: str) -> ProfileMessage:
        plan.say(f"{name} has joined, and measures itself")
        return ProfileMessage(name=name, key=key, path=plan.path)

    with tempfile.TemporaryDirectory(prefix="holdfast-profile-") as folder:
        gathering = Gathering(
            command="profile",
            engine=plan.engine,
            endpoint=plan.endpoint,
            count=plan.count,
            folder=Path(folder),
            greeting=greet,
            add=plan.show,
        )
        with gathering.meeting() as meeting:
            lines = gathering.gather(meeting)
            reports = dict(_reports(lines, plan.show))
            places = {name: (each.address, each.port) for name, each in reports.items()}
            links = measure_links(places, lines, None, plan.say) if len(places) > 1 else []
            dismiss(lines.values())
    for each in _failures(links):
        plan.show(each)
    return _profiles(reports, links)


def _reports(
    lines: Mapping[str, Line], show: Callable[[Finding], None]
) -> Iterator[tuple[str, ProfiledMessage]]:
    """What hosts have measured, by what the engine calls them."""
    deadline = time.monotonic() + PROFILE_TIMEOUT_S
    for name, line in lines.items():
        try:
            report = line.expect(ProfiledMessage, max(0.1, deadline - time.monotonic()))
        except HoldfastError as error:
            show(_fault(name, str(error), "look on that host, and measure again"))
            continue
        if report.profile is None:
            show(_fault(name, report.problem))
        else:
            yield name, report


def _failures(links: list[Link]) -> Iterator[Finding]:
    """Why links were not measured; a host that was lost is named once."""
    lost = set[str]()
    for link in links:
        if link.reach is Reach.LOST and link.source not in lost:
            lost.add(link.source)
            yield _fault(link.source, link.why, "look on that host, and measure again")
        elif link.reach is not Reach.REACHED and link.source not in lost:
            found = f"no connection to {link.target}: {link.why}"
            yield _fault(link.source, found, "see what is in the way by: holdfast doctor --on")


def _profiles(reports: Mapping[str, ProfiledMessage], links: list[Link]) -> Profiles:
    """The profiles by host name, which may not be what the engine calls a host."""
    names, profiles = dict[str, str](), dict[str, HostProfile]()
    for called, report in reports.items():
        assert report.profile is not None
        names[called] = unlike(report.host, profiles)
        profiles[names[called]] = report.profile
    reached = (each for each in links if each.reach is Reach.REACHED)
    return Profiles(
        hosts=profiles,
        links=tuple(
            HostLink(
                source=names[each.source],
                target=names[each.target],
                latency_s=each.latency_s,
                bytes_per_s=each.bytes_per_s,
            )
            for each in reached
        ),
    )


def _fault(host: str, found: str, remedy: str = "") -> Finding:
    return replace(fault("profile", found, remedy), host=host)
