"""The `holdfast` command and its subcommands."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from holdfast.cli.on_demand import OnDemand, command
from holdfast.cli.status import FAILED_STATUS, STOPPED_STATUS, USAGE_STATUS
from holdfast.errors import HoldfastError, Interrupted, JobError, RankTraceback
from holdfast.launch.spawn import Spawned


def _version(is_asked: bool) -> None:
    if is_asked:
        from importlib import metadata

        print(metadata.version("holdfast"))
        raise typer.Exit


app = typer.Typer(
    cls=OnDemand,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train PyTorch models on machines that fail and differ, and get the same weights.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", is_eager=True, callback=_version),
    ] = False,
) -> None:
    """Train PyTorch models on machines that fail and differ, and get the same weights."""


def run(spawned: Spawned | None) -> None:
    """Run the command line; known errors are printed as one line on standard error.

    With --json the error is also printed as one object at the end of standard output.

    Args:
        spawned: A fork server that the command may use.
    """
    try:
        app(obj=spawned)
    except HoldfastError as error:
        if isinstance(error.__cause__, RankTraceback):
            print(error.__cause__, file=sys.stderr)
        message = " ".join(str(error).split())  # messages of other libraries may have many lines
        print(f"holdfast: {message}", file=sys.stderr)
        if "--json" in _own(sys.argv[1:]):
            print(json.dumps({"error": type(error).__name__, "message": message}))
        sys.exit(_status(error))


def _status(error: HoldfastError) -> int:
    """The exit status of a command that raised `error`."""
    if isinstance(error, JobError):
        return USAGE_STATUS
    return STOPPED_STATUS if isinstance(error, Interrupted) else FAILED_STATUS


def _own(words: list[str]) -> list[str]:
    """The words of the command itself, without the arguments of a script."""
    if words[:1] != ["run"]:
        return words
    context = command("run").make_context("run", words[1:], resilient_parsing=True)
    return words[: len(words) - len(context.params["arguments"] or ())]
