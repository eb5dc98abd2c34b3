"""OnDemand: a group of commands each of which is imported when it is called."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
import typer.main
from typer.core import TyperGroup

from holdfast.cli.commands import COMMANDS, Entry
from holdfast.launch.collector import without_collector


class OnDemand(TyperGroup):
    """The commands of `COMMANDS`: names and first lines of help, until one is called."""

    def __init__(self, **keys: Any) -> None:
        super().__init__(**keys)
        for name, entry in COMMANDS.items():
            self.add_command(_shown(name, entry))

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
    return _made(name, found, takes_script=entry.takes_script)


def _shown(name: str, entry: Entry) -> Any:
    """A command that can only be shown."""

    def shown() -> None:
        raise AssertionError("it is imported before it is called")

    shown.__doc__ = entry.help
    return _made(name, shown)


def _made(name: str, function: Any, *, takes_script: bool = False) -> Any:
    """The command of a function."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    settings = {"allow_interspersed_args": False} if takes_script else {}
    app.command(name, context_settings=settings)(function)
    return typer.main.get_command(app)
