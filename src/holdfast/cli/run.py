"""`holdfast run`: run a script as `torchrun` would, and start it anew where a worker is lost."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.arguments import EndingJson, ranks
from holdfast.cli.ending import run_and_tell
from holdfast.engines import script as engine
from holdfast.engines.run import LaunchOptions
from holdfast.errors import JobError
from holdfast.job import load
from holdfast.job.script_job import Script


def run(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="A Python file; with -m, a module.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGUMENTS", help="What the script is given, as it is."),
    ] = None,
    workers: Annotated[
        str,
        typer.Option(
            "--workers", "--nproc-per-node", "--nproc_per_node", help="Workers; auto: one a core."
        ),
    ] = "1",
    max_restarts: Annotated[
        int | None,
        typer.Option(min=0, help="Losses that are forgiven in a while; 10 by default."),
    ] = None,
    hang_timeout_s: Annotated[
        float | None,
        typer.Option(help="Seconds in which no worker does anything; 60 by default."),
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option("--run", help="The run's directory; by default a new one below runs/."),
    ] = None,
    tee: Annotated[
        str,
        typer.Option(metavar="RANKS", help="Show what these workers print: all, or such as 0,2."),
    ] = "all",
    module: Annotated[
        bool, typer.Option("-m", "--module", help="SCRIPT is a module, as for python -m.")
    ] = False,
    as_json: EndingJson = False,
) -> None:
    """Run an unchanged torchrun script; when a worker is lost, all of them start anew."""
    place = {"module": script} if module else {"path": script}
    asked = Script(**place, arguments=tuple(arguments or ()))
    values = {
        "name": engine.name_of(asked),
        "script": asked.model_dump(),
        "workers": _number(workers),
        "hang_timeout_s": hang_timeout_s,
        "restarts": None if max_restarts is None else {"limit": max_restarts},
    }
    job = load.check_script(
        {key: each for key, each in values.items() if each is not None}, where=script
    )
    setting = LaunchOptions(tee=ranks(tee, job.workers), forks=context.obj)
    run_and_tell(partial(engine.run_script, job, run_dir=run_dir), setting, as_json=as_json)


def _number(workers: str) -> int:
    """How many workers `--workers` asks for."""
    if workers == "auto":
        return len(os.sched_getaffinity(0))
    if not workers.isdecimal():
        raise JobError(f"--workers {workers}: write a number, or auto for one a core")
    return int(workers)
