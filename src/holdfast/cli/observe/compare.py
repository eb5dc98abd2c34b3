"""`holdfast compare`: put runs next to each other."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Final

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
from holdfast.record.views.comparison import Comparison, RunFigures, compared

_SHA_DIGITS: Final = 12
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

            write_comparison(records, [each.name for each in found.runs], figure_file)
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
        writer = csv.DictWriter(file, [each.name for each in fields(RunFigures)])
        writer.writeheader()
        writer.writerows(map(asdict, found.runs))


def _table(found: Comparison) -> Table:
    """A row for each figure that a run has, and a column for each run."""
    table = Table(box=box.SIMPLE)
    table.add_column("")
    for run in found.runs:
        table.add_column(Text(run.name), justify="right", overflow="fold")
    for label, cell in _rows(found):
        cells = [cell(run) for run in found.runs]
        if any(each != MISSING for each in cells):
            table.add_row(label, *(Text(each.replace(NBSP, " ")) for each in cells))
    return table


def _rows(found: Comparison) -> list[tuple[str, Callable[[RunFigures], str]]]:
    metrics = dict.fromkeys(run.metric_name for run in found.runs if run.metric_name)
    return [
        ("job", lambda run: _word(run.job)),
        ("state", lambda run: run.state),
        ("workers", lambda run: _count(run.workers)),
        ("hosts", lambda run: _count(run.hosts)),
        ("batch", lambda run: _count(run.batch)),
        ("steps", lambda run: _count(run.steps)),
        ("samples", lambda run: _count(run.samples)),
        ("wall time", lambda run: duration(run.wall_s)),
        ("samples/s", lambda run: digits(run.samples_per_s)),
        ("tokens/s", lambda run: digits(run.tokens_per_s)),
        ("goodput, samples/s", lambda run: digits(run.goodput_samples_per_s)),
        ("useful share of time", lambda run: percent(run.goodput)),
        ("imbalance", lambda run: percent(run.imbalance)),
        ("loss", lambda run: digits(run.loss)),
        (
            f"loss after {found.equal_samples:,} samples",
            lambda run: digits(run.loss_at_equal_samples),
        ),
        *((name.replace("_", " "), partial(_metric, name)) for name in metrics),
        ("recoveries", lambda run: _count(run.recoveries)),
        ("time lost in recoveries", lambda run: duration(run.lost_s)),
        ("exactness", lambda run: _word(run.exactness)),
        ("weights sha256", lambda run: _word(run.weights_sha256)[:_SHA_DIGITS]),
        ("cost", lambda run: digits(run.cost)),
        ("cost per 1,000 samples", lambda run: digits(run.cost_per_1000)),
    ]


def _metric(name: str, run: RunFigures) -> str:
    return digits(run.metric) if run.metric_name == name else MISSING


def _word(value: str | None) -> str:
    return value or MISSING


def _count(value: int | None) -> str:
    return MISSING if value is None else f"{value:,}"
