"""`holdfast breakdown`: show what the workers of a run spend their time on."""

from __future__ import annotations

import json
from typing import Annotated, Final

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from holdfast.cli.arguments import Json, NewestRun, run_directory
from holdfast.errors import JobError
from holdfast.record import breakdown as observed
from holdfast.rundir import json_lines
from holdfast.rundir.run_directory import EVENTS, METRICS

MIN_WIDTH: Final = 120
"""Columns of a table that is not shown on a terminal."""


def breakdown(
    run: NewestRun = None,
    steps: Annotated[int, typer.Option(min=1, help="How many of the last steps to average.")] = 20,
    as_json: Json = False,
) -> None:
    """Show the time that each worker spends in each phase of a step, and the bottleneck."""
    path = run_directory(run)
    rows = observed.rows(json_lines.read(path / METRICS), steps)
    if not rows:
        raise JobError(
            f"{path} has recorded no step: a run has none before its first, and a script may make "
            "none; pass another run directory"
        )
    events = list(json_lines.read(path / EVENTS))
    bottleneck = observed.bottleneck(events)
    caps = observed.caps(events)
    if as_json:
        print(json.dumps({"workers": rows, "caps": caps, "bottleneck": bottleneck}))
        return
    console = Console()
    console.width = max(console.width, MIN_WIDTH) if not console.is_terminal else console.width
    console.print(_table(rows))
    for rank, cap in caps.items():
        most = f"it computes at most {cap} shard{'s'[: cap > 1]} of a step"
        print(f"rank {rank} ran out of memory: {most if cap else 'the others compute its shards'}")
    if bottleneck:
        print(bottleneck)


def _table(rows: list[dict[str, float]]) -> Table:
    table = Table(box=box.SIMPLE, title="milliseconds of a step", title_justify="left")
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        counts = [f"{row['rank']}", f"{row['shards']:g}"]
        table.add_row(*counts, *(f"{1000 * row[name]:.1f}" for name in list(row)[2:]))
    return table
