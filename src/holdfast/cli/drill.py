"""`holdfast drill`: verify that a job ends with the same weights under every fault."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from holdfast.cli.arguments import EndingJson, JobName, Overrides
from holdfast.cli.status import FAILED_STATUS, STOPPED_STATUS
from holdfast.errors import JobError
from holdfast.faults.drill import (
    KINDS,
    POLICIES,
    Drill,
    DrillReport,
    Trial,
    check,
    fitting,
    other_worlds,
)
from holdfast.job import load
from holdfast.job.mistakes import nearest
from holdfast.job.part import AUTO
from holdfast.job.train_job import TrainJob, TrainRequest
from holdfast.rundir.run_directory import new_run
from holdfast.runs.run_fork_server import fork_server
from holdfast.sinks.terminal import closing_table


def drill(
    context: typer.Context,
    job: JobName,
    overrides: Overrides = None,
    faults: Annotated[
        str | None, typer.Option(help=f"Fault kinds: {', '.join(KINDS)}; default: all that apply.")
    ] = None,
    policies: Annotated[
        str | None, typer.Option(help=f"Policies: {', '.join(POLICIES)}; default: all that apply.")
    ] = None,
    worlds: Annotated[
        bool,
        typer.Option("--vary-workers", help="Also run with other world sizes and uneven plans."),
    ] = False,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed for the target rank and step of each fault.")
    ] = 0,
    run: Annotated[
        Path | None, typer.Option(help="New directory for the runs; default: one in runs/.")
    ] = None,
    as_json: EndingJson = False,
) -> None:
    """Verify that a job ends with the same weights under faults as in a fault-free run."""
    chosen = _resolved(load.load(job, overrides or []), worlds=worlds)
    kinds, ways = fitting(chosen)
    directory = run or new_run(f"drill-{chosen.name}")
    if directory.exists():
        raise JobError(f"{directory} already exists; name a new directory with --run")
    kinds = _chosen(faults, KINDS, "--faults") if faults else kinds
    ways = _chosen(policies, POLICIES, "--policies") if policies else ways
    check(chosen, kinds, ways)
    others = other_worlds(chosen, seed) if worlds else []
    with fork_server(chosen, context.obj) as forks:
        drill_of = Drill(chosen, seed=seed, directory=directory, forks=forks, note=_note)
        report = drill_of.run(kinds, ways, others)
    _show(report, directory, as_json=as_json)
    if report.stopped:
        raise typer.Exit(STOPPED_STATUS)
    if not report.passed:
        raise typer.Exit(FAILED_STATUS)


def _resolved(request: TrainRequest, *, worlds: bool) -> TrainJob:
    """The job with numbers that all runs share; with enough shards to be divided otherwise."""
    job = request.resolved()
    if worlds and request.shards == AUTO and job.shards == job.workers:
        return request.model_copy(update={"max_workers": 2 * job.workers}).resolved()
    return job


def _chosen(words: str, known: tuple[Any, ...], option: str) -> list[Any]:
    """The words of an option, which commas separate."""
    chosen = list(dict.fromkeys(words.split(",")))
    for word in chosen:
        if word not in known:
            hint = nearest(word, known) or f"use {', '.join(known)}"
            raise JobError(f"{option}: unknown {word!r}; {hint}")
    return chosen


def _note(trial: Trial) -> None:
    result = "the same weights as the reference run"
    if trial.problem:
        result = f"{trial.problem}; its run is in {trial.run_dir}"
    print(f"{trial.name}: {result}", file=sys.stderr)


def _show(report: DrillReport, directory: Path, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(_as_dict(report, directory)))
        return
    print(closing_table(report.reference_run.as_dict()))
    table = Table("fault", "policy", "weights", "seconds", "goodput", box=box.SIMPLE)
    for trial in report.trials:
        weights = "the same" if not trial.problem else trial.problem
        figures = "" if trial.seconds is None else f"{trial.seconds:.2f}"
        goodput = "" if trial.goodput is None else f"{trial.goodput:.0%}"
        table.add_row(trial.kind or str(trial.world), trial.policy or "", weights, figures, goodput)
    Console(soft_wrap=True).print(table)
    print(_sentence(report))


def _sentence(report: DrillReport) -> str:
    """The result, in words."""
    if report.deterministic is False:
        return (
            "two fault-free runs of this job end with different weights, so no fault can be "
            "judged: it uses something apart from its seed, such as the time or a private random "
            "generator"
        )
    good = sum(not trial.problem for trial in report.trials)
    ended = f"{good} of {len(report.trials)} trials ended with the weights of the reference run"
    return f"stopped; {ended} until then" if report.stopped else ended


def _as_dict(report: DrillReport, directory: Path) -> dict[str, Any]:
    return {
        "status": "stopped" if report.stopped else "passed" if report.passed else "failed",
        "deterministic": report.deterministic,
        "reference_run": report.reference_run.as_dict(),
        "seconds": report.seconds,
        "trials": [
            {
                "fault": trial.kind,
                "policy": trial.policy,
                "world": None if trial.world is None else asdict(trial.world),
                "passed": not trial.problem,
                "problem": trial.problem,
                "seconds": trial.seconds,
                "goodput": trial.goodput,
                "run_dir": str(trial.run_dir) if trial.problem else None,
            }
            for trial in report.trials
        ],
        "run_dir": str(directory),
    }
