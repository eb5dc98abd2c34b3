"""`holdfast hosts`: the hosts of `--on ssh:FILE`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from holdfast.clusters.engines import hosts_file, hosts_setup
from holdfast.errors import EngineError

app = typer.Typer(help="Hosts that ssh reaches.", no_args_is_help=True)


@app.callback()
def hosts() -> None:
    """Hosts that ssh reaches."""


@app.command("setup")
def setup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Names the hosts, one a line.")],
) -> None:
    """Give each host an environment with holdfast and what it needs, as this one has it."""
    say = partial(print, flush=True)
    if not_ready := hosts_setup.set_up(hosts_file.read(file), say):
        raise EngineError(f"not ready: {', '.join(not_ready)}; fix that, and do the same again")
    print(f"next: holdfast train JOB --on ssh:{file}", file=sys.stderr)
