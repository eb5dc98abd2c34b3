"""`holdfast runs`, `logs` and `stop`: the runs that were started on this host."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.api.background import show
from holdfast.cli.arguments import Json
from holdfast.errors import HoldfastError, JobError
from holdfast.record import history, registry
from holdfast.record.registry import Record
from holdfast.record.units import MISSING, NBSP, duration
from holdfast.record.views.brief import Brief
from holdfast.rundir.run_directory import worker_log
from holdfast.sinks.tee import Tee

TICK_S: Final = 0.1
MIN_WIDTH: Final = 200
"""Columns of a table that is not shown on a terminal."""
STOP_TIMEOUT_S: Final = 1800.0
"""Time that a run may take to end its step and write a checkpoint."""

Run = Annotated[str, typer.Argument(help="Id of a run, as `holdfast runs` lists it, or directory.")]


def runs(as_json: Json = False) -> None:
    """List the runs that were started on this host, newest first."""
    now = time.time()
    rows = [_row(record, record.brief(), now) for record in registry.records()]
    if as_json:
        print(json.dumps(rows))
        return
    table = Table(box=None, pad_edge=False)
    for name in ("id", "job", "engine", "state", "step", "last event", "directory"):
        table.add_column(name, overflow="fold")
    for row in rows:
        age = row.pop("last_event_age_s")
        row["last_event"] += f", {duration(age)} ago" if age is not None else MISSING
        del row["reason"]
        table.add_row(*(Text(str(each).replace(NBSP, " ")) for each in row.values()))
    Console(width=None if sys.stdout.isatty() else MIN_WIDTH).print(table)


def _row(record: Record, brief: Brief, now: float) -> dict[str, Any]:
    event = brief.last_event
    return {
        "id": record.id, "job": record.job, "engine": record.engine, "state": brief.state.name,
        "reason": brief.state.reason, "step": brief.step,
        "last_event": history.words(event) if event else "",
        # It may have happened since `now`.
        "last_event_age_s": max(0.0, round(now - event["time_unix_s"], 3)) if event else None,
        "directory": str(record.directory),
    }  # fmt: skip


def logs(
    run: Run,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show what is added until the run ends.")
    ] = False,
    rank: Annotated[
        int | None, typer.Option(min=0, help="Show what this worker prints instead.")
    ] = None,
) -> None:
    """Show what a run has printed."""
    record = registry.find(run)

    def goes_on() -> bool:
        return follow and record.is_active

    if rank is None:
        if not record.folder.exists() or not any(record.folder.glob("*.log")):
            raise JobError(
                f"{run} printed to the terminal that it was started from; --rank shows a worker's "
                "output, holdfast events what happened"
            )
        show(record.folder, goes_on)
        return
    path = worker_log(record.directory / "logs", rank)
    if not path.exists():
        raise JobError(f"{path} does not exist: the run has no rank {rank}, or it printed nothing")
    tee = Tee(path.parent, [rank], whole=True)
    while goes_on():
        for line in tee.lines():
            print(line, flush=True)
        time.sleep(TICK_S)
    for line in tee.last_lines():
        print(line)


def stop(
    run: Run,
    now: Annotated[
        bool, typer.Option("--now", help="End it at once, without a checkpoint.")
    ] = False,
) -> None:
    """Stop a run after the current step, with a checkpoint; wait until it has ended."""
    record = registry.find(run)
    process = record.stop(at_once=now)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while process.is_alive:
        if time.monotonic() > deadline:
            raise HoldfastError(
                f"{run} has not ended {STOP_TIMEOUT_S:.0f} s after it was asked to; --now ends it"
            )
        time.sleep(TICK_S)
    brief = record.brief()
    has_begun = record.directory.exists()
    print(f"{brief.state.name} after step {brief.step}" if has_begun else "stopped before it began")
