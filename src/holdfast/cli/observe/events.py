"""`holdfast events`: show what happened in a run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.arguments import Json, NewestRun, run_directory
from holdfast.errors import JobError
from holdfast.record import history
from holdfast.record.moments import is_event
from holdfast.record.units import NBSP, count
from holdfast.rundir import json_lines
from holdfast.rundir.run_directory import CRASH_DUMP, DEBUG_LOG, EVENTS, RECOVERIES


def events(
    run: NewestRun = None,
    as_json: Json = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Show the coordinator's log: each event and its actions."),
    ] = False,
) -> None:
    """Show what happened in a run: starts, failures, checkpoints, recovery reports."""
    path = run_directory(run)
    if debug:
        print(_debug_log(path / "logs"), end="")
        return
    if skipped := len(json_lines.unreadable(path / EVENTS)):
        print(
            f"holdfast: {count(skipped, 'line')} of {path / EVENTS} cannot be read; "
            "holdfast audit names them".replace(NBSP, " "),
            file=sys.stderr,
        )
    entries, recoveries = (list(json_lines.read(path / name)) for name in (EVENTS, RECOVERIES))
    if as_json:
        print(json.dumps({"events": entries, "recoveries": recoveries}))
        return
    for line in history.describe(filter(is_event, entries), recoveries, path / "logs"):
        print(line)


def _debug_log(logs: Path) -> str:
    """The log of the newest coordinator; see `core.debug_log`."""
    paths = [path for name in (DEBUG_LOG, CRASH_DUMP) if (path := logs / name).exists()]
    if not paths:
        raise JobError(
            f"{logs} has no {DEBUG_LOG} yet: the coordinator writes it when it ends by itself"
        )
    newest = max(paths, key=lambda path: path.stat().st_mtime)
    return newest.read_text(encoding="utf-8", errors="replace")
