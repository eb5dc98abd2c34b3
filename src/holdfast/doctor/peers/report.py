"""Report: what one host has found on itself and of its links, and what it is asked to look at."""

from __future__ import annotations

import enum
from contextlib import suppress
from pathlib import Path

from pydantic import Field, ValidationError

from holdfast.doctor.finding import Finding
from holdfast.doctor.torch_report import TorchReport
from holdfast.hardware.profile import HostProfile
from holdfast.strict import Strict


class Wanted(Strict):
    """Request to the hosts of a check.

    Attributes:
        job: The job that is checked, as YAML; empty to measure the hardware instead.
        run_dir: Directory of the check on the first host, which alone has the code of the job.
        path: The directory whose disk is measured; empty for where agents keep theirs.
    """

    job: str = ""
    run_dir: str = ""
    path: str = ""


class Reach(enum.StrEnum):
    """The result of an attempt to connect."""

    REACHED = "reached"
    SILENT = "silent"
    """Nothing came back."""
    REFUSED = "refused"
    """Something answers there that accepts no connection."""
    NO_ROUTE = "no route"
    UNLIKE = "unlike"
    """Something else than a host of this check answers."""


class LinkReport(Strict):
    """A link in one direction, in which connections are made and bytes are sent.

    Attributes:
        source, target: The hosts; their ranks, until the first host names them.
        reach: Result of the attempt to connect.
        why: The error, if it has not.
        latency_s: Seconds until an answer comes back; 0 if not reached.
        bytes_per_s: Sent by one connection; 0 if not reached.
        ahead_s: Seconds by which the clock of the target is ahead.
    """

    source: str
    target: str
    reach: Reach
    why: str = ""
    latency_s: float = 0.0
    bytes_per_s: float = 0.0
    ahead_s: float = 0.0


class HostReport(Strict):
    """Findings of a host on itself, and then on its links.

    Attributes:
        host: Its host name.
        address: Address and port where it accepts workers of other hosts.
        versions: Versions of Python and packages, by name.
        torch: Report of a process with torch; None if it failed.
        findings: Results of its own checks.
        weights: SHA-256 of the weights of its trial run; empty if that failed.
        profile: Profile of its hardware, if that was asked for.
        problem: Reason for which that was not measured.
        links: Links from it.
        heard: The ranks of the hosts whose datagrams have arrived.
    """

    host: str
    address: str = ""
    versions: dict[str, str] = Field(default_factory=dict)
    torch: TorchReport | None = None
    findings: tuple[Finding, ...] = ()
    weights: str = ""
    profile: HostProfile | None = None
    problem: str = ""
    links: tuple[LinkReport, ...] = ()
    heard: tuple[int, ...] = ()


def newest(log: Path) -> HostReport | None:
    """The last report among the lines of a log; None if there is none."""
    for line in reversed(log.read_bytes().splitlines() if log.exists() else []):
        with suppress(ValidationError):
            return HostReport.model_validate_json(line)
    return None
