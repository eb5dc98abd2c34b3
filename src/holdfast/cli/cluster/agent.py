"""`holdfast agent` and `leave`: work for a run that another host has started, until it leaves."""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from holdfast.api.taken_over import TakenOver
from holdfast.cli.arguments import Metrics, Profile, metrics_address, profiles
from holdfast.errors import HoldfastError, JobError
from holdfast.record import registry
from holdfast.runs.hosts import joining_agent
from holdfast.sinks.prometheus.served_metrics import metrics_of_host

LEAVE_TIMEOUT_S: Final = 60.0
"""Time that an agent may take to end its workers, seconds."""
TICK_S: Final = 0.1


def agent(
    context: typer.Context,
    join: Annotated[
        str, typer.Option(metavar="ADDRESS:PORT", help="The coordinator, as its run has printed.")
    ],
    token_file: Annotated[Path | None, typer.Option(help="A copy of the run's token file.")] = None,
    address: Annotated[
        str,
        typer.Option(help="Address of this host for the others; default: of the route to --join."),
    ] = "",
    run: Annotated[
        Path | None,
        typer.Option(help="Run directory of this host; default: runs/NAME-OF-THE-RUN."),
    ] = None,
    profile: Profile = None,
    metrics: Metrics = None,
    placed: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="For engines: the agent's name. It reads its token from standard input, and ends "
            "when that is closed.",
        ),
    ] = "",
) -> None:
    """Run workers of this host for a run, until the run is over."""
    if (token_file is None) != bool(placed):
        raise JobError("give --token-file, a copy of the token file that the run has printed")
    say = partial(print, file=sys.stderr, flush=True)
    known = profiles(profile)
    served = metrics_address(metrics)
    joining_agent.serve(
        join,
        token_file,
        say,
        address,
        run,
        placed=placed,
        spawned=context.obj,
        profile=known,
        serving=None if served is None else partial(metrics_of_host, served),
        attend=TakenOver,
    )


def leave(
    run: Annotated[str, typer.Argument(help="Run directory of this host.")],
) -> None:
    """Have this host leave a run, which continues on the others; wait until it has left."""
    process = registry.find(run).leave()
    deadline = time.monotonic() + LEAVE_TIMEOUT_S
    while process.is_alive:
        if time.monotonic() > deadline:
            raise HoldfastError(
                f"this host has not left {run} after {LEAVE_TIMEOUT_S:.0f} s; `holdfast events "
                f"{run}` may say why, or end its process, {process.pid}"
            )
        time.sleep(TICK_S)
    print(f"this host has left {run}")
