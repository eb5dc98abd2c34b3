"""Runs a benchmark's module with the options of its command, stores the result, and shows it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from holdfast.cli.status import FAILED_STATUS
from holdfast.errors import BenchmarkFailed
from holdfast_bench.results.measure import measure
from holdfast_bench.results.result import Result
from holdfast_bench.suite.catalogue import BY_NAME

Quick = Annotated[
    bool, typer.Option("--quick", help="Smaller defaults, which take under a minute.")
]
Output = Annotated[
    str | None, typer.Option(metavar="DIR", help="Directory for the result, NAME.json.")
]

WIDTH: Final = 170
"""Columns of the widest table; a narrower terminal breaks its lines rather than its words."""
_OWN: Final = frozenset({"quick", "output", "as_json"})
"""Options that every benchmark has."""


def run(context: typer.Context) -> None:
    """Run the benchmark of a command."""
    name, given = str(context.info_name), context.params
    folder = None if given["output"] is None else Path(given["output"])
    try:
        result = measure(name, _options(context), folder if BY_NAME[name].draws else None)
    except BenchmarkFailed as failed:
        raise typer.Exit(failed.code) from None
    if folder is not None:
        result.save(folder)
    if given["as_json"]:
        print(result.model_dump_json())
    else:
        show(result)
    if not all(row.get("passed", True) for row in result.rows):
        raise typer.Exit(FAILED_STATUS)


def show(result: Result) -> None:
    """Print a table for each kind of row."""
    console = Console()
    console.width = max(console.width, WIDTH)
    for kind in dict.fromkeys(row.get("measure") for row in result.rows):
        console.print(_table([row for row in result.rows if row.get("measure") == kind]))
    for name, reason in result.absent.items():
        print(f"left out: {name}: {reason}")


def _options(context: typer.Context) -> list[str]:
    """The words of the module's command line: quick ones replace defaults, not what was given."""
    quick = BY_NAME[str(context.info_name)].quick if context.params["quick"] else {}
    words: list[str] = []
    for parameter in context.command.params:
        name = str(parameter.name)
        option = max(parameter.opts, key=len).removeprefix("--")
        value = context.params.get(name)
        source = context.get_parameter_source(name)
        if source is not None and source.name == "DEFAULT":
            value = quick.get(option, value)
        if name in _OWN or value is None:
            continue
        for each in value if isinstance(value, list | tuple) else [value]:
            words += [f"--{option}", str(each)]
    return words


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(*(name.replace("_", " ") for name in names), box=box.SIMPLE)
    for row in rows:
        table.add_row(*(_cell(row.get(name, "")) for name in names))
    return table


def _cell(value: Any) -> str:
    match value:
        case {"median": median, "min": least, "max": most}:
            return f"{median} [{least}-{most}]"
        case list():
            return ", ".join(map(str, value))
        case True | False:
            return "yes" if value else "no"
        case None:
            return ""
    return str(value)
