"""`holdfast top`: show a run at a glance in a terminal."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from holdfast.cli import complete
from holdfast.cli.arguments import run_directory
from holdfast.observe import registry
from holdfast.observe.registry import Record
from holdfast.terminal.screen import others_in_words
from holdfast.terminal.top import Top, follow


def top(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN|DIRECTORY]",
            help="Id or directory of a run; default: the newest that is running, else the newest.",
            autocompletion=complete.run,
        ),
    ] = None,
) -> None:
    """Show a run at a glance, live, until q; in a pipe as lines, until the run has ended."""
    active = [each for each in registry.records() if each.is_active]
    shown = registry.find(run) if run is not None else active[0] if active else _newest()
    others = [each.id for each in active if each.directory != shown.directory]
    console = Console()
    if sys.stdout.isatty() and not console.is_dumb_terminal:
        Top(shown, others_in_words(others), console).show()
    else:
        follow(shown, sys.stdout)


def _newest() -> Record:
    """The newest run that was started on this host, else the newest in `runs/`."""
    newest = next(registry.records(), None)
    return newest or registry.find(str(run_directory(None)))
