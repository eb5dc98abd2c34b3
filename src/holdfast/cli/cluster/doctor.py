"""`holdfast doctor`: check whether a run would work here, and say what to do if not."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from holdfast.api.reserve import engine_hosts
from holdfast.cli.arguments import ENGINES, JobName, Json, Overrides
from holdfast.cli.cluster.joining import Address, Port, announcing, endpoint_at
from holdfast.cli.status import FAILED_STATUS
from holdfast.doctor import network
from holdfast.doctor.finding import Conclusion, Finding, Outcome, would_work
from holdfast.doctor.host import examine
from holdfast.doctor.needs import HostNeeds
from holdfast.doctor.peers.check import HostsCheck
from holdfast.job import load
from holdfast.job.train_job import TrainRequest
from holdfast.launch.spawn import Spawned
from holdfast.linux.supply import usable_cores
from holdfast.rundir.run_directory import new_run
from holdfast.runs.hosts.endpoint import DEFAULT_PORT, Endpoint
from holdfast.runs.hosts.placement import Placement

_DEFAULT_JOB: Final = "digits"

Show = Callable[[Finding], None]


def doctor(
    context: typer.Context,
    job: JobName = _DEFAULT_JOB,
    overrides: Overrides = None,
    hosts: Annotated[
        int,
        typer.Option(min=1, help="Check so many hosts, this one included, and every pair of them."),
    ] = 1,
    address: Address = None,
    port: Port = DEFAULT_PORT,
    on: Annotated[
        str,
        typer.Option(
            metavar="ENGINE",
            help=f"Check the hosts that it reserves: {ENGINES}.",
        ),
    ] = "",
    run: Annotated[
        Path | None,
        typer.Option(help="Run directory that a run would have; default: a new one in runs/."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check this host for a job by doing what a run does; exits with 1 if one would not work.

    With --hosts the other hosts join, by the line that is printed, and every pair is checked. With
    --on an engine places agents on the hosts of the job.
    """
    show: Show = _keep_quiet if as_json else _print
    keys = [*(overrides or []), *([f"hosts={hosts}"] if hosts > 1 else [])]
    request = load.load(job, keys)
    where = run or new_run(request.name)
    if hosts == 1 and not on:
        needs = HostNeeds.of(
            request, usable_cores(), where, _ports(port) if request.hosts > 1 else {}
        )
        conclusion = _of_one(needs, address or "", context.obj, show)
    else:
        folder = where.with_name(f"{where.name}-doctor")
        check = HostsCheck(words=(job, *keys), folder=folder, show=show)
        if on:
            placing = ["--on", on, *(["--address", address] if address else [])]
            with engine_hosts(request, on, address or "") as placement:
                conclusion = check.run(request.resolved(), placement, placing)
        else:
            endpoint = endpoint_at(address, port)
            ports = HostNeeds.of(request, usable_cores(), where, _ports(port)).ports
            conclusion = _of_joining(check, request, endpoint, ports, context.obj)
    _end(conclusion, as_json=as_json)


def _ports(port: int) -> dict[int, str]:
    """Ports that the first of several hosts needs, and what for."""
    return {port: "hosts that join", port + 1: "agents"}


def _of_one(needs: HostNeeds, address: str, forks: Spawned | None, show: Show) -> Conclusion:
    findings = []
    for each in examine(needs, address, forks):
        if isinstance(each, Finding):
            show(each)
            findings.append(each)
    return Conclusion(findings=tuple(findings), settings=())


def _of_joining(
    check: HostsCheck,
    request: TrainRequest,
    endpoint: Endpoint,
    ports: dict[int, str],
    forks: Spawned | None,
) -> Conclusion:
    """Check this host, and others that join it."""
    found = network.ports(ports, endpoint.address)
    for each in found:
        check.show(each)
    if not would_work(found):
        return Conclusion(findings=tuple(found), settings=())
    sidecar = announcing(endpoint, request.hosts - 1)
    placement = Placement(endpoint=endpoint)
    return check.run(request.resolved(), placement, forks=forks, sidecar=sidecar)


def _end(conclusion: Conclusion, *, as_json: bool) -> None:
    """Print the result of a check, whose findings have been shown, and end with its status."""
    findings = conclusion.findings
    settings = conclusion.settings
    works = would_work(findings)
    if as_json:
        rows = [each.as_dict() for each in findings]
        print(json.dumps({"ok": works, "findings": rows, "settings": settings}))
    else:
        print(_summary(findings))
        if settings:
            where = ", on the first host and on each other" if len(settings) > 1 else ""
            print("\n".join(["", f"what works{where}:", *settings]))
    if not works:
        raise typer.Exit(FAILED_STATUS)


def _print(finding: Finding) -> None:
    """Print a finding: a line, and what to do on the next; not what is well on one of several."""
    if finding.host and finding.outcome is Outcome.OK:
        return
    mark = finding.outcome.upper() if finding.outcome is Outcome.FAULT else finding.outcome
    host = f"{finding.host}: " if finding.host else ""
    print(f"{mark:<7}{finding.check:<15} {host}{finding.found}", flush=True)
    if finding.remedy:
        print(f"{'':22} → {finding.remedy}", flush=True)


def _keep_quiet(_: Finding) -> None:
    """Show nothing: all findings come at the end."""


def _summary(findings: Sequence[Finding]) -> str:
    faults = sum(each.outcome is Outcome.FAULT for each in findings)
    hints = sum(each.outcome is Outcome.ADVICE for each in findings)
    counts = f"{len(findings)} checks, {hints} with advice"
    if faults:
        return f"\n{counts}, {faults} with a fault: a run would not work"
    return f"\n{counts}: a run would work"
