"""`holdfast events`: tell what has happened in a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.arguments import Json
from holdfast.errors import JobError
from holdfast.observe import history, lines
from holdfast.observe.run_dir import EVENTS, RECOVERIES, RUNS


def events(
    run: Annotated[
        Path | None,
        typer.Argument(help="The run's directory; by default the newest run below runs/."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Tell what has happened in a run: starts, losses, checkpoints, receipts."""
    path = run or _newest()
    if not (path / EVENTS).exists():
        raise JobError(f"{path} holds no run; name the directory of one")
    found, receipts = (list(lines.read(path / name)) for name in (EVENTS, RECOVERIES))
    if as_json:
        print(json.dumps({"events": found, "receipts": receipts}))
        return
    for line in history.told(found, receipts, path / "logs"):
        print(line)


def _newest() -> Path:
    """The run in which something has happened last."""
    found = list(RUNS.glob(f"**/{EVENTS}"))  # the runs of a drill lie one level deeper
    if not found:
        raise JobError(f"there is no run below {RUNS}/; name the directory of one")
    return max(found, key=lambda path: path.stat().st_mtime).parent
