"""`holdfast top`: show a run at a glance in a terminal."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from holdfast.cli import complete
from holdfast.cli.arguments import run_directory
from holdfast.record import registry
from holdfast.record.registry import Record
from holdfast.views.terminal.screen import others_in_words
from holdfast.views.terminal.top import Top, follow


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
    shown, others = chosen(run)
    console = Console()
    if sys.stdout.isatty() and not console.is_dumb_terminal:
        Top(shown, others_in_words(others), console).show()
    else:
        follow(shown, sys.stdout)


def chosen(run: str | None) -> tuple[Record, list[str]]:
    """The run that is meant, and the ids of others that are running.

    Args:
        run: Its id or directory; None for the newest that is running, else the newest.

    Raises:
        JobError: There is none.
    """
    known = list(registry.records())
    running = [each for each in known if each.is_active and not each.is_waiting]
    newest = [*running, *known]
    if run is not None:
        shown = registry.find(run)
    else:
        shown = newest[0] if newest else registry.find(str(run_directory(None)))
    return shown, [each.id for each in running if each.directory != shown.directory]
