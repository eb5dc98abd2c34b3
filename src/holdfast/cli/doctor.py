"""`holdfast doctor`: check whether a run would work here, and say what to do if not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import complete
from holdfast.cli.arguments import Json, Overrides
from holdfast.cli.ending import FAILED_STATUS
from holdfast.cli.joining import Port
from holdfast.doctor.finding import Finding, Outcome, would_work
from holdfast.doctor.host import examine
from holdfast.doctor.needs import Needs
from holdfast.job import load
from holdfast.launch.spawn import Spawned
from holdfast.linux.cores import usable_cores
from holdfast.observe.run_dir import new_run
from holdfast.runs.endpoint import DEFAULT_PORT

_DEFAULT_JOB = "digits"


def doctor(
    context: typer.Context,
    job: Annotated[
        str,
        typer.Argument(
            help="Built-in job (digits, …), path of a .yaml file, or file.py:function.",
            autocompletion=complete.job,
        ),
    ] = _DEFAULT_JOB,
    overrides: Overrides = None,
    address: Annotated[
        str,
        typer.Option(help="Address of this host for the others; default: of the default route."),
    ] = "",
    port: Port = DEFAULT_PORT,
    run: Annotated[
        Path | None,
        typer.Option(help="Run directory that a run would have; default: a new one in runs/."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check this host for a job by doing what a run does; exits with 1 if one would not work."""
    request = load.load(job, overrides or [])
    ports = {port: "hosts that join", port + 1: "agents"} if request.hosts > 1 else {}
    needs = Needs.of(request, usable_cores(), run or new_run(request.name), ports)
    findings = list(_shown(needs, address, context.obj, quiet=as_json))
    if as_json:
        rows = [each.as_dict() for each in findings]
        print(json.dumps({"ok": would_work(findings), "findings": rows}))
    else:
        print(_summary(findings))
    if not would_work(findings):
        raise typer.Exit(FAILED_STATUS)


def _shown(needs: Needs, address: str, forks: Spawned | None, *, quiet: bool) -> Iterator[Finding]:
    for each in examine(needs, address, forks):
        if isinstance(each, Finding):
            if not quiet:
                print(line_of(each), flush=True)
            yield each


def line_of(finding: Finding) -> str:
    """A finding as it is shown: a line, and its remedy on the next."""
    mark = finding.outcome.upper() if finding.outcome is Outcome.FAULT else finding.outcome
    text = f"{mark:<7}{finding.check:<15} {finding.found}"
    return f"{text}\n{'':22} → {finding.remedy}" if finding.remedy else text


def _summary(findings: list[Finding]) -> str:
    faults = sum(each.outcome is Outcome.FAULT for each in findings)
    hints = sum(each.outcome is Outcome.ADVICE for each in findings)
    counts = f"{len(findings)} checks, {hints} with advice"
    if faults:
        return f"\n{counts}, {faults} with a fault: a run would not work"
    return f"\n{counts}: a run would work"
