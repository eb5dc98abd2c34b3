"""`holdfast report`: a page with figures, drawn from stored results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.errors import JobError


def report(
    results: Annotated[
        Path, typer.Argument(help="Directory of results, from holdfast bench NAME --output.")
    ] = Path("bench-results"),
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory to write to; default: the same.")
    ] = None,
) -> None:
    """Write a report with figures from stored results: report.html and report.md."""
    from holdfast_bench.report import markdown, page  # import matplotlib
    from holdfast_bench.report import results as stored
    from holdfast_bench.report.report import build

    found = build(stored.Results.load(results))
    try:
        paths = [page.write(found, output or results), markdown.write(found, output or results)]
    except OSError as error:
        raise JobError(f"{error.filename}: {error.strerror}") from None
    for path in paths:
        print(path)
    for name in found.missing:
        print(f"not measured: {name}")
