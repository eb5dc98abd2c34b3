"""`holdfast scale`: give a run another number of workers."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.record import registry
from holdfast.runs.coordinator_process import scale as scale_run


def scale(
    run: Annotated[
        str, typer.Argument(help="Id of a run, as `holdfast runs` lists it, or directory.")
    ],
    workers: Annotated[int, typer.Argument(min=1, help="Number of workers.")],
) -> None:
    """Give a run another number of workers while it trains; wait until they do."""
    directory = registry.find(run).directory
    scaled = scale_run(directory, workers)
    print(f"{directory}: {workers} workers, {scaled.before} before, from step {scaled.step} on")
