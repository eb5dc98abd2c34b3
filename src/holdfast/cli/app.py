"""The `holdfast` command and its subcommands, each of which is imported when it is called."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from holdfast.cli.commands import COMMANDS
from holdfast.cli.status import FAILED_STATUS, STOPPED_STATUS, USAGE_STATUS
from holdfast.errors import HoldfastError, Interrupted, JobError, RankTraceback
from holdfast.launch.collector import without_collector
from holdfast.launch.spawn import Spawned


class OnDemand(TyperGroup):
    """The commands of `COMMANDS`: names and first lines of help, until one is called."""

    def __init__(self, **keys: Any) -> None:
        super().__init__(**keys)
        for name, entry in COMMANDS.items():
            self.add_command(TyperCommand(name, help=entry.help))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The name of the command that `args` begin with, the command itself, and its words."""
        name, known, words = super().resolve_command(ctx, args)
        return name, known and command(args[0]), words


def command(name: str) -> Any:
    """Import a command, or a group of commands, as Typer makes it."""
    entry = COMMANDS[name]
    module, _, attribute = entry.home.partition(":")
    with without_collector():
        found = getattr(import_module(module), attribute)
    if isinstance(found, typer.Typer):
        group = typer.main.get_group(found)
        group.name = name
        return group
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    settings = {"allow_interspersed_args": False} if entry.takes_script else {}
    alone.command(name, context_settings=settings)(found)
    return typer.main.get_command(alone)


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
