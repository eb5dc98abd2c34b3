"""Profiling: the hardware of the hosts that an engine reserves, and the links between them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from holdfast.doctor.finding import Finding, fault
from holdfast.doctor.peers.gather import Gathered, gather, unlike
from holdfast.doctor.peers.report import Reach, Wanted
from holdfast.hardware.profile import HostLink, HostProfile
from holdfast.hardware.profile_file import Profiles
from holdfast.job.run_keys import RunKeys
from holdfast.runs.hosts.placement import Placement


def profile_hosts(
    keys: RunKeys,
    placement: Placement,
    path: str,
    show: Callable[[Finding], None],
) -> Profiles:
    """Profile all hosts of a job, and every pair; without those that have failed.

    Args:
        keys: Keys of the job whose hosts are reserved.
        placement: The hosts themselves.
        path: The directory whose disk is measured; empty for where agents keep theirs.
        show: Shows what has failed.

    Raises:
        HoldfastError: This host cannot be joined, or the engine does not answer.
        Interrupted: A signal has ended it.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-profile-") as folder:
        gathered = gather(Wanted(path=path), keys, placement, Path(folder) / "run")
    for each in (*gathered.failures, *_failures(gathered)):
        show(each)
    return _profiles(gathered)


def _failures(gathered: Gathered) -> Iterator[Finding]:
    """Findings of hosts and links that were not measured."""
    for name, report in gathered.told.items():
        if report.problem:
            yield replace(fault("profile", report.problem, ""), host=name)
    for link in gathered.links:
        if link.reach is not Reach.REACHED:
            found = f"no connection to {link.target}: {link.why}"
            remedy = "see what is in the way by: holdfast doctor --on"
            yield replace(fault("profile", found, remedy), host=link.source)


def _profiles(gathered: Gathered) -> Profiles:
    """The profiles by host name, which may not be what the engine calls a host."""
    names = dict[str, str]()
    profiles = dict[str, HostProfile]()
    for called, report in gathered.told.items():
        if report.profile is not None:
            names[called] = unlike(report.host, profiles)
            profiles[names[called]] = report.profile
    return Profiles(
        hosts=profiles,
        links=tuple(
            HostLink(
                source=names[each.source],
                target=names[each.target],
                latency_s=each.latency_s,
                bytes_per_s=each.bytes_per_s,
            )
            for each in gathered.links
            if each.reach is Reach.REACHED and {each.source, each.target} <= names.keys()
        ),
    )
