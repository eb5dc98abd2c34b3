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
from holdfast_bench.results.measure import measure, show_help
from holdfast_bench.results.result import Result
from holdfast_bench.suite.catalogue import BY_NAME

WIDTH: Final = 170
"""Columns of the widest table; a narrower terminal breaks its lines rather than its words."""
_HELP: Final = frozenset({"-h", "--help"})
_OWN_OPTIONS: Final = """
options of every benchmark:
  --quick       Smaller defaults, which take under a minute.
  --output DIR  Directory for the result, NAME.json.
  --json        Print the result as JSON.
"""


def run(
    context: typer.Context,
    quick: Annotated[bool, typer.Option("--quick")] = False,
    output: Annotated[Path | None, typer.Option()] = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Run the benchmark of a command with the words that follow its name."""
    benchmark = BY_NAME[str(context.info_name)]
    if _HELP & {*context.args}:
        show_help(benchmark.name)
        print(_OWN_OPTIONS, end="")
        return
    words = [*(benchmark.quick_words if quick else ()), *context.args]  # the last one counts
    try:
        result = measure(benchmark.name, words)
    except BenchmarkFailed as failed:
        raise typer.Exit(failed.code) from None
    if output is not None:
        result.save(output)
    if as_json:
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
        case [list(), *_]:
            return f"{len(value)} points"
        case list():
            return ", ".join(map(str, value))
        case True | False:
            return "yes" if value else "no"
        case None:
            return ""
    return str(value)
