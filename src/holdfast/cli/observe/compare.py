"""`holdfast compare`: put runs next to each other."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.cli.arguments import Json
from holdfast.errors import JobError
from holdfast.record import registry
from holdfast.record.run_record import RunRecord
from holdfast.record.units import MISSING, NBSP, digits, duration, percent
from holdfast.record.views.comparison import METRIC, Comparison, compared

Line = tuple[str, str, Callable[[Any], str]]
"""A line of the table: its label, its column in a comparison, and what shows a value."""

_SPEED: Final[Sequence[Line]] = (
    ("job", "job", str),
    ("state", "state", str),
    ("workers", "workers", str),
    ("hosts", "hosts", str),
    ("batch", "batch", "{:,}".format),
    ("steps", "steps", "{:,}".format),
    ("samples", "samples", "{:,}".format),
    ("wall time", "wall_s", duration),
    ("samples/s", "samples_per_s", digits),
    ("tokens/s", "tokens_per_s", digits),
    ("goodput, samples/s", "goodput_samples_per_s", digits),
    ("useful share of time", "goodput", percent),
    ("imbalance", "imbalance", percent),
    ("loss", "loss", digits),
)
_OUTCOME: Final[Sequence[Line]] = (
    ("recoveries", "recoveries", str),
    ("time lost in recoveries", "lost_s", duration),
    ("exactness", "exactness", str),
    ("weights sha256", "weights_sha256", "{:.12}".format),
    ("cost", "cost", digits),
    ("cost per 1,000 samples", "cost_per_1000", digits),
)
"""Lines of the table before and after what evaluations say."""
_COLUMN_WIDTH: Final = 30
"""Columns of a run in a table that is not shown on a terminal."""
_LABEL_WIDTH: Final = 40


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(help="Ids of runs, as `holdfast runs` lists them, or directories."),
    ],
    price: Annotated[
        float | None, typer.Option(min=0, help="Price of a host per hour; adds what runs cost.")
    ] = None,
    as_json: Json = False,
    csv_file: Annotated[
        Path | None,
        typer.Option("--csv", metavar="FILE", help="Write the figures, a line for each run."),
    ] = None,
    figure_file: Annotated[
        Path | None,
        typer.Option(
            "--figure",
            metavar="FILE",
            help="Draw loss and throughput by samples: .png, .svg or .pdf.",
        ),
    ] = None,
) -> None:
    """Put runs next to each other: speed, goodput, loss, balance, recoveries, cost."""
    paths = dict.fromkeys(registry.find(run).directory for run in runs)
    records = [RunRecord(path) for path in paths]
    found = compared(records, price)
    try:
        if csv_file is not None:
            _write_csv(found, csv_file)
        if figure_file is not None:
            from holdfast.record.views.figure import write_comparison  # imports matplotlib

            write_comparison(records, [each["name"] for each in found.runs], figure_file)
    except OSError as error:
        raise JobError(f"{error.filename}: {error.strerror}") from None
    if as_json:
        print(json.dumps(asdict(found)))
        return
    for note in found.notes:
        print(f"note: {note}")
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, _LABEL_WIDTH + _COLUMN_WIDTH * len(found.runs))
    console.print(_table(found))


def _write_csv(found: Comparison, path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, found.runs[0])
        writer.writeheader()
        writer.writerows(found.runs)


def _table(found: Comparison) -> Table:
    """A row for each figure that a run has, and a column for each run."""
    table = Table(box=box.SIMPLE)
    table.add_column("")
    for run in found.runs:
        table.add_column(Text(run["name"]), justify="right", overflow="fold")
    names = [name for name in found.runs[0] if name.startswith(METRIC)]
    metrics = [(name.removeprefix(METRIC).replace("_", " "), name, digits) for name in names]
    equal = f"loss after {found.equal_samples:,} samples"
    losses = [(equal, "loss_at_equal_samples", digits), *metrics]
    for label, name, shown in (*_SPEED, *losses, *_OUTCOME):
        values = [run.get(name) for run in found.runs]
        if any(value is not None for value in values):
            cells = [MISSING if value is None else shown(value) for value in values]
            table.add_row(label, *(Text(cell.replace(NBSP, " ")) for cell in cells))
    return table
