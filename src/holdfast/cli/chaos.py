"""`holdfast chaos`: strike a run on purpose, a new one or one that is under way."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from holdfast.cli import complete
from holdfast.cli.arguments import EndingJson, Overrides
from holdfast.cli.ending import FAILED_STATUS, STOPPED_STATUS
from holdfast.engines import train as engine
from holdfast.engines.run import LaunchOptions
from holdfast.errors import HoldfastError, JobError
from holdfast.faults.fault_injector import FaultInjector
from holdfast.faults.plan import Fault, FaultPlan, planned
from holdfast.faults.target import Target
from holdfast.job import load
from holdfast.job.train_job import TrainJob
from holdfast.launch.spawn import Spawned
from holdfast.linux.lifeline import STOP_SIGNALS
from holdfast.observe.sinks.terminal import closing_table


def chaos(
    context: typer.Context,
    job: Annotated[
        str | None,
        typer.Argument(
            help="A built-in job or a .yaml file; without one, --run is struck, which is under "
            "way in another process.",
            autocompletion=complete.job,
        ),
    ] = None,
    overrides: Overrides = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND[:KEY=VALUE,...]",
            help="What is to strike, such as kill:step=25,rank=1; may be given again.",
        ),
    ] = None,
    plan: Annotated[Path | None, typer.Option(help="A YAML file with faults.")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of all that the faults leave open.")
    ] = None,
    num_random: Annotated[
        int, typer.Option("--random", min=0, help="So many faults that do no lasting harm.")
    ] = 0,
    run: Annotated[Path | None, typer.Option(help="The run's directory.")] = None,
    as_json: EndingJson = False,
) -> None:
    """Strike a run on purpose, and see it get over that."""
    faults = planned(fault or (), file=plan, seed=seed, num_random=num_random)
    if job is None:
        if run is None:
            raise JobError("name a job to run, or with --run a run that is under way")
        storm, result = _strike(run, faults), None
    else:
        chosen = load.load(job, overrides or ())
        storm = FaultInjector(faults, chosen)
        result = _train(storm, chosen, run, forks=context.obj, quiet=as_json)
    _print(storm, result, as_json=as_json)
    if storm.stopped or (result is not None and result.status == "stopped"):
        raise typer.Exit(STOPPED_STATUS)
    if storm.missed:
        missed = "; ".join(f"{each.fault}: {each.reason}" for each in storm.missed)
        number = len(storm.injected) + len(storm.missed)
        print(f"holdfast: {len(storm.missed)} of {number} faults missed: {missed}", file=sys.stderr)
        raise typer.Exit(FAILED_STATUS)


def _strike(run: Path, plan: FaultPlan) -> FaultInjector:
    """Strike a run of another process, until a signal stops the storm at most."""
    target = Target.under_way(run)
    storm = FaultInjector(plan, load.of_run(run))
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: storm.stop())
    storm.strike(target)
    return storm


def _train(
    storm: FaultInjector, job: TrainJob, run: Path | None, *, forks: Spawned | None, quiet: bool
) -> engine.Result:
    """Run a job in a storm; where that fails, the storm is told of all the same."""
    setting = LaunchOptions(forks=forks, sidecar=storm.running)
    try:
        return engine.run_job(job, setting, run_dir=run, resume=False)
    except HoldfastError:
        if not quiet:
            _print_table(storm)
        raise


def _print(storm: FaultInjector, result: engine.Result | None, *, as_json: bool) -> None:
    found: dict[str, Any] = {} if result is None else result.as_dict()
    if as_json:
        struck, missed = ([each.as_dict() for each in of] for of in (storm.injected, storm.missed))
        print(json.dumps(found | {"injected": struck, "missed": missed}))
        return
    if found:
        print(closing_table(found))
    _print_table(storm)


def _print_table(storm: FaultInjector) -> None:
    table = Table("fault", "rank", "", box=box.SIMPLE)
    for struck in storm.injected:
        at = "" if struck.step is None else f" at step {struck.step}"
        table.add_row(struck.fault.kind, _rank(struck.fault), f"struck{at}")
    for missed in storm.missed:
        table.add_row(missed.fault.kind, _rank(missed.fault), f"missed: {missed.reason}")
    Console().print(table)


def _rank(fault: Fault) -> str:
    return "" if fault.rank is None else str(fault.rank)
