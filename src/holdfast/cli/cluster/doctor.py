"""`holdfast doctor`: check whether a run would work here, and say what to do if not."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from holdfast.api.reserve import engine_hosts
from holdfast.cli import complete
from holdfast.cli.arguments import ENGINES, Json, Overrides
from holdfast.cli.cluster.joining import Port, endpoint_at
from holdfast.cli.status import FAILED_STATUS
from holdfast.doctor.finding import Conclusion, Finding, Outcome, would_work
from holdfast.doctor.host import examine
from holdfast.doctor.needs import Needs
from holdfast.doctor.peers.first import Plan, lead
from holdfast.doctor.peers.other import Part, follow
from holdfast.doctor.peers.placed import PlacedPlan, check_placed
from holdfast.errors import JobError
from holdfast.job import load
from holdfast.job.train_job import TrainRequest
from holdfast.launch.spawn import Spawned
from holdfast.linux.cores import usable_cores
from holdfast.rundir.run_directory import agents_dir, new_run
from holdfast.runs.hosts.endpoint import DEFAULT_PORT

_DEFAULT_JOB: Final = "digits"
_SAY: Final = partial(print, file=sys.stderr, flush=True)

Show = Callable[[Finding], None]


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
    hosts: Annotated[
        int,
        typer.Option(min=1, help="Check so many hosts, this one included, and every pair of them."),
    ] = 1,
    address: Annotated[
        str,
        typer.Option(help="Address of this host for the others; default: of the default route."),
    ] = "",
    port: Port = DEFAULT_PORT,
    join: Annotated[
        str,
        typer.Option(metavar="ADDRESS:PORT", help="Take part in the check that runs there."),
    ] = "",
    token_file: Annotated[
        Path | None, typer.Option(help="With --join, a copy of the token file of that check.")
    ] = None,
    placed: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="For engines, with --join: the name of this part. It reads its token from "
            "standard input, and ends when that is closed.",
        ),
    ] = "",
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
    --on an engine places the check on its hosts.
    """
    show: Show = _keep_quiet if as_json or placed else _print
    if bool(join) != (token_file is not None or bool(placed)):
        raise JobError("--join and --token-file belong together; give both, as printed")
    if join:
        part = Part(
            first=join,
            token_file=None if placed else token_file,
            placed=placed,
            address=address,
            run_dir=run or (agents_dir() / "doctor" if placed else new_run(_DEFAULT_JOB)),
            say=_SAY,
            show=show,
        )
        conclusion = follow(part, context.obj)
        if not placed:
            _show_faults(conclusion, show)
            _end(conclusion, as_json=as_json)
        return
    words = [*(overrides or []), *([f"hosts={hosts}"] if hosts > 1 else [])]
    request = load.load(job, words)
    if on:
        _end(_of_engine(request, on, address, [job, *words], run, show), as_json=as_json)
        return
    ports = {port: "hosts that join", port + 1: "agents"} if request.hosts > 1 else {}
    needs = Needs.of(request, usable_cores(), run or new_run(request.name), ports)
    if hosts == 1:
        _end(_of_one(needs, address, context.obj, show), as_json=as_json)
        return
    plan = Plan(
        needs=needs,
        endpoint=endpoint_at(address or None, port),
        words=(job, *(overrides or [])),
        folder=needs.run_dir.with_name(f"{needs.run_dir.name}-doctor"),
        say=_SAY,
        show=show,
    )
    _end(lead(plan, context.obj), as_json=as_json)


def _of_engine(
    request: TrainRequest, on: str, address: str, words: list[str], run: Path | None, show: Show
) -> Conclusion:
    """Check the hosts that an engine reserves."""
    where = run or new_run(request.name)
    with engine_hosts(request, on, address) as there:
        assert there.engine is not None
        assert there.endpoint is not None
        given = ["--address", address] if address else []
        plan = PlacedPlan(
            job=request.resolved(),
            engine=there.engine,
            endpoint=there.endpoint,
            command=shlex.join(["holdfast", "train", *words, "--on", on, *given]),
            folder=where.with_name(f"{where.name}-doctor"),
            say=_SAY,
            show=show,
        )
        return check_placed(plan)


def _show_faults(conclusion: Conclusion, show: Show) -> None:
    for each in conclusion.findings:
        if each.outcome is not Outcome.OK:
            show(each)


def _of_one(needs: Needs, address: str, forks: Spawned | None, show: Show) -> Conclusion:
    findings = []
    for each in examine(needs, address, forks):
        if isinstance(each, Finding):
            show(each)
            findings.append(each)
    return Conclusion(findings=tuple(findings), settings=())


def _end(conclusion: Conclusion, *, as_json: bool) -> None:
    """Print what a check has come to, whose findings have been shown, and end with its status."""
    findings, settings = conclusion.findings, conclusion.settings
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
    """Print a finding: a line, and what to do on the next. Other hosts print what is well there."""
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
