"""`holdfast checkpoint ls`: list the checkpoints of a run, and why each is kept."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.checkpoint.inventory import Item, Kind, inventory
from holdfast.checkpoint.store import CheckpointStore
from holdfast.cli.arguments import Json, NewestRun, run_directory
from holdfast.cli.checkpoint.reading import reachable, settings_of
from holdfast.record.units import MISSING, NBSP, clock, size

MIN_WIDTH: Final = 200
"""Columns of a table that is not shown on a terminal."""


def ls(run: NewestRun = None, as_json: Json = False) -> None:
    """List the checkpoints of a run, newest first: step, size, time, and why each is kept."""
    path = run_directory(run)
    store = CheckpointStore.of_run(path)
    with reachable(path):
        items = inventory(store, settings_of(path).retention)
    if as_json:
        print(json.dumps({"run": str(path), "checkpoints": [_row(item) for item in items]}))
        return
    if not items:
        print(f"no checkpoint in {path}")
        return
    console = Console()
    console.width = console.width if console.is_terminal else MIN_WIDTH
    console.print(_table(items, framed=console.is_terminal))


def _row(item: Item) -> dict[str, Any]:
    return {
        "name": item.name,
        "step": item.step,
        "size_bytes": item.size_bytes,
        "time_unix_s": _written_at(item),
        "kind": item.kind,
        "kept": [*item.kept],
        "problem": item.problem,
    }


def _table(items: list[Item], *, framed: bool) -> Table:
    table = Table(box=box.SIMPLE if framed else None, pad_edge=False)
    for name in ("step", "size"):
        table.add_column(name, justify="right")
    for name in ("written", "condition", "name"):
        table.add_column(name, overflow="fold")
    now = time.time()
    for item in items:
        at = _written_at(item)
        cells = [f"{item.step}", size(item.size_bytes), clock(at, now) if at else MISSING]
        cells += [_condition(item), item.name]
        table.add_row(*(Text(cell.replace(NBSP, " ")) for cell in cells))
    return table


def _written_at(item: Item) -> float | None:
    """Unix time at which it was committed, seconds; None if that is not known."""
    if item.manifest is None:
        return None
    return datetime.fromisoformat(item.manifest.origin.at).timestamp()


def _condition(item: Item) -> str:
    match item.kind:
        case Kind.CHECKPOINT:
            return ", ".join(item.kept) or "to be deleted"
        case Kind.DAMAGED:
            return f"damaged: {item.problem}"
    return item.kind
