"""`holdfast chaos`: inject faults into a new run, or into one that is in progress."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from holdfast.api.attended import Attendance
from holdfast.api.result import Result
from holdfast.api.train import run_job
from holdfast.cli import complete
from holdfast.cli.arguments import EndingJson, Overrides
from holdfast.cli.status import FAILED_STATUS, STOPPED_STATUS
from holdfast.errors import HoldfastError, JobError
from holdfast.faults.fault_injector import FaultInjector
from holdfast.faults.plan import Fault, FaultPlan, planned
from holdfast.faults.target import Target
from holdfast.job import load
from holdfast.linux.lifeline import active_stop_signals
from holdfast.runs.run import LaunchOptions
from holdfast.sinks.terminal import closing_table


def chaos(
    context: typer.Context,
    job: Annotated[
        str | None,
        typer.Argument(
            help="Job to run: built-in, or a .yaml file; without a job, --run must name a run in "
            "progress.",
            autocompletion=complete.job,
        ),
    ] = None,
    overrides: Overrides = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND[:KEY=VALUE,...]",
            help="Fault to inject, such as kill:step=25,rank=1; may be repeated.",
        ),
    ] = None,
    plan: Annotated[Path | None, typer.Option(help="YAML file with a fault plan.")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed for ranks and steps left unspecified.")
    ] = None,
    num_random: Annotated[
        int, typer.Option("--random", min=0, help="Number of random non-destructive faults.")
    ] = 0,
    run: Annotated[Path | None, typer.Option(help="Run directory.")] = None,
    as_json: EndingJson = False,
) -> None:
    """Inject faults into a run, and see it recover."""
    faults = planned(fault or (), file=plan, seed=seed, num_random=num_random)
    if job is None:
        if run is None:
            raise JobError("name a job to run, or a run in progress with --run")
        injector = _inject(run, faults)
        result = None
    else:
        chosen = load.load(job, overrides or ()).resolved()
        injector = FaultInjector(faults, chosen)
        result = _train(
            injector,
            partial(run_job, chosen, LaunchOptions(forks=context.obj), run_dir=run),
            quiet=as_json,
        )
    _print(injector, result, as_json=as_json)
    if injector.stopped or (result is not None and result.status == "stopped"):
        raise typer.Exit(STOPPED_STATUS)
    if injector.missed:
        missed = "; ".join(f"{each.fault}: {each.reason}" for each in injector.missed)
        number = len(injector.injected) + len(injector.missed)
        print(
            f"holdfast: {len(injector.missed)} of {number} faults missed: {missed}", file=sys.stderr
        )
        raise typer.Exit(FAILED_STATUS)


def _inject(run: Path, plan: FaultPlan) -> FaultInjector:
    """Inject into a run of another process, unless a signal ends that early."""
    target = Target.under_way(run)
    injector = FaultInjector(plan, load.of_run(run))
    for number in active_stop_signals():
        signal.signal(number, lambda *_: injector.stop())
    injector.inject(target)
    return injector


def _train(injector: FaultInjector, start: Callable[..., Result], *, quiet: bool) -> Result:
    """Run a job with faults; if the run fails, the faults are printed all the same."""
    try:
        return start(resume=False, attendance=Attendance(sidecar=injector.running))
    except HoldfastError:
        if not quiet:
            _print_table(injector)
        raise


def _print(injector: FaultInjector, result: Result | None, *, as_json: bool) -> None:
    summary: dict[str, Any] = {} if result is None else result.as_dict()
    if as_json:
        injected = [each.as_dict() for each in injector.injected]
        missed = [each.as_dict() for each in injector.missed]
        print(json.dumps(summary | {"injected": injected, "missed": missed}))
        return
    if summary:
        print(closing_table(summary))
    _print_table(injector)


def _print_table(injector: FaultInjector) -> None:
    table = Table("fault", "rank", "", box=box.SIMPLE)
    for injected in injector.injected:
        at = "" if injected.step is None else f" at step {injected.step}"
        table.add_row(injected.fault.kind, _rank(injected.fault), f"injected{at}")
    for missed in injector.missed:
        table.add_row(missed.fault.kind, _rank(missed.fault), f"missed: {missed.reason}")
    Console().print(table)


def _rank(fault: Fault) -> str:
    return "" if fault.rank is None else str(fault.rank)
