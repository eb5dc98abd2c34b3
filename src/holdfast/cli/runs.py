"""`holdfast runs`, `logs` and `stop`: the runs that were started on this host."""

from __future__ import annotations

import json
import signal
import sys
import time
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from holdfast.cli.arguments import Json
from holdfast.cli.background import show
from holdfast.errors import HoldfastError, JobError
from holdfast.observe import registry
from holdfast.observe.run_dir import worker_log
from holdfast.observe.tee import Tee

TICK_S: Final = 0.1
STOP_TIMEOUT_S: Final = 1800.0
"""How long a run may take to end its step and write a checkpoint."""

Run = Annotated[str, typer.Argument(help="Id of a run, as `holdfast runs` lists it, or directory.")]


def runs(as_json: Json = False) -> None:
    """List the runs that were started on this host, newest first."""
    rows = [
        {
            "id": each.id, "job": each.job, "engine": each.engine, "state": each.state(),
            "steps": each.steps(), "directory": str(each.directory),
        }
        for each in registry.records()
    ]  # fmt: skip
    if as_json:
        print(json.dumps(rows))
        return
    table = Table(box=None, pad_edge=False)
    for name in ("id", "job", "engine", "state", "steps", "directory"):
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(width=None if sys.stdout.isatty() else 200).print(table)


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
        return follow and record.state() in ("waiting", "running")

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
    process = record.process()
    if process is None:
        raise JobError(f"{run} is not running on this host: it is {record.state()}")
    for _ in range(1 + now):
        process.send(signal.SIGTERM)
        time.sleep(TICK_S)  # two signals at once count as one
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while process.is_alive:
        if time.monotonic() > deadline:
            raise HoldfastError(
                f"{run} has not ended {STOP_TIMEOUT_S:.0f} s after it was asked to; --now ends it"
            )
        time.sleep(TICK_S)
    has_begun = record.directory.exists()
    print(
        f"{record.state()} after step {record.steps()}" if has_begun else "stopped before it began"
    )
