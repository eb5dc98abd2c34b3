"""Ending of a command after a run: its output and its exit status."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Collection, Mapping

import typer

from holdfast.api.result import RunResult
from holdfast.cli.status import STOPPED_STATUS
from holdfast.errors import HoldfastError, RankTraceback
from holdfast.sinks.terminal import closing_table


def run_and_print(
    run: Callable[[], RunResult],
    commands: Callable[[RunResult], Mapping[str, list[str]]],
    *,
    shown: Collection[int] = (),
    as_json: bool,
) -> None:
    """Run something to its end and print its result as a table or as one JSON object.

    Args:
        run: Runs it.
        commands: Purposes of further commands, and the words of the command for it; they are
            printed below a table.
        shown: Ranks whose output was shown.
        as_json: True to print JSON.
    """
    try:
        result = run()
    except HoldfastError as error:
        if isinstance(error.__cause__, RankTraceback) and error.__cause__.rank in shown:
            error.__cause__ = None  # it was shown already
        raise
    if as_json:
        print(json.dumps(result.as_dict()))
    else:
        print(closing_table(result.as_dict()))
        next_commands = {what: shlex.join(words) for what, words in commands(result).items()}
        print(f"\nnext\n{closing_table(next_commands)}", file=sys.stderr)
    if result.status == "stopped":
        raise typer.Exit(STOPPED_STATUS)
