"""`holdfast bench all`, `compare` and `cost`: the whole suite, and results of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from holdfast.cli.arguments import Json
from holdfast.cli.status import FAILED_STATUS
from holdfast.errors import JobError
from holdfast.job.mistakes import nearest
from holdfast_bench.cli.bench import app
from holdfast_bench.cli.run import show
from holdfast_bench.qlora.rows import Order
from holdfast_bench.results.result import Result
from holdfast_bench.suite.catalogue import BENCHMARKS, BY_NAME
from holdfast_bench.suite.compare import SMALL_CHANGE, Comparison, compare
from holdfast_bench.suite.cost import priced_again
from holdfast_bench.suite.run_all import run_all


@app.command("all")
def every(
    output: Annotated[Path, typer.Option(metavar="DIR", help="Directory for the results.")] = Path(
        "bench-results"
    ),
    only: Annotated[
        str | None, typer.Option(metavar="NAME,…", help="Benchmarks to run; by default all.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="The quick options of each benchmark.")
    ] = False,
    peers_python: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Python interpreter whose torchrun, torchft and Ray Train are also measured.",
        ),
    ] = None,
) -> None:
    """Run all benchmarks in turn; results that are there already are kept."""
    chosen = BENCHMARKS if only is None else [BY_NAME[name] for name in _names(only)]
    done = run_all(
        chosen,
        output,
        quick=quick,
        peers_python=peers_python,
        note=lambda text: print(text, file=sys.stderr),
    )
    for each in done:
        taken = "" if each.seconds is None else f" in {each.seconds:.0f} s"
        print(f"{each.name}: {each.outcome}{taken}")
    print(f"results are in {output}; holdfast report {output} draws them")
    if any(each.outcome == "failed" for each in done):
        raise typer.Exit(FAILED_STATUS)


@app.command("compare")
def compared(
    old: Annotated[Path, typer.Argument(help="Result file, or directory of results.")],
    new: Annotated[Path, typer.Argument(help="The same, measured later.")],
    small: Annotated[
        float, typer.Option(min=0, help="Changes up to this percentage are none.")
    ] = 100 * SMALL_CHANGE,
    as_json: Json = False,
) -> None:
    """Compare two results; exits 1 if something has become worse."""
    found = compare(old, new, small / 100)
    if as_json:
        rows = [each.as_dict() for each in found.compared]
        print(json.dumps({"compared": rows, "differences": found.differences}))
    else:
        _show(found)
    if found.regressions:
        raise typer.Exit(FAILED_STATUS)


@app.command("cost")
def cost(
    results: Annotated[
        list[Path], typer.Argument(help="Result files of holdfast bench qlora or scaling.")
    ],
    price: Annotated[float, typer.Option(min=0, help="Price of a host per hour.")],
    samples: Annotated[
        int, typer.Option(min=1, help="Samples of the job that is priced.")
    ] = 10_000,
    deadline: Annotated[
        float | None, typer.Option(min=0, help="Hours that the job may take.")
    ] = None,
    budget: Annotated[float | None, typer.Option(min=0, help="What the job may cost.")] = None,
    as_json: Json = False,
) -> None:
    """Price a job by stored results, without measuring again."""
    order = Order(samples=samples, price=price, deadline_h=deadline, budget=budget)
    found = [priced_again(Result.load(path), order) for path in results]
    if as_json:
        print(json.dumps([{"benchmark": each.benchmark, "rows": each.rows} for each in found]))
        return
    for each in found:
        show(each)


def _names(only: str) -> list[str]:
    for name in only.split(","):
        if name not in BY_NAME:
            hint = nearest(name, tuple(BY_NAME)) or f"there are {', '.join(BY_NAME)}"
            raise JobError(f"--only: no benchmark {name!r}; {hint}")
    return only.split(",")


def _show(found: Comparison) -> None:
    table = Table(
        "benchmark", "row", "measured", "old", "new", "change", "95 %", "", box=box.SIMPLE
    )
    for each in found.compared:
        bounds = f"{each.low_percent:+.1f} to {each.high_percent:+.1f} %"
        table.add_row(
            each.benchmark, each.row, each.column, f"{each.old:g}", f"{each.new:g}",
            f"{each.change_percent:+.1f} %", bounds, each.outcome,
        )  # fmt: skip
    Console(soft_wrap=True).print(table)
    for text in found.differences:
        print(f"not the same conditions: {text}")
    worse = len(found.regressions)
    print(f"{worse} of {len(found.compared)} measurements are worse")
