"""`holdfast checkpoint diff`: how two checkpoints differ."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import typer

from holdfast.checkpoint.find import find_checkpoint, manifest_of
from holdfast.cli.arguments import Json
from holdfast.cli.checkpoint.reading import RunOrCheckpoint, reachable, reading
from holdfast.rundir.json_lines import finite

if TYPE_CHECKING:
    from holdfast.checkpoint.diff import CheckpointDiff

MAX_WIDTH: Final = 60
"""Longest value that is shown whole."""
DIFFERENT_STATUS: Final = 1
"""Exit status if they differ, as that of diff(1)."""


def diff(one: RunOrCheckpoint, other: RunOrCheckpoint, as_json: Json = False) -> None:
    """Compare two checkpoints: tensors, job keys, metrics, place in the data."""
    from holdfast.checkpoint.diff import compare  # imports numpy

    with reachable(one), reachable(other):
        first = find_checkpoint(one)
        second = find_checkpoint(other)
        size_bytes = manifest_of(first).size_bytes + manifest_of(second).size_bytes
        with reading("comparing", size_bytes) as advance:
            found = compare(first, second, advance)
    if as_json:
        paths = {"one": str(first), "other": str(second)}
        print(json.dumps(finite({**paths, "equal": found.is_equal, **asdict(found)})))
    else:
        print(f"one      {first}\nother    {second}")
        for line in _lines(found):
            print(line)
    if not found.is_equal:
        raise typer.Exit(DIFFERENT_STATUS)


def _lines(found: CheckpointDiff) -> Iterator[str]:
    differing = f"{len(found.tensors)} differ" if found.tensors else "equal"
    yield f"tensors  {found.compared} compared, {differing}"
    for tensor in found.tensors:
        yield (
            f"  {tensor.name}: {tensor.differing:,} of {tensor.elements:,} elements, by "
            f"{tensor.max_abs:.6g} at most"
        )
    for name, (mine, others) in found.unlike.items():
        yield f"  {name}: {mine} | {others}"
    for section, fields in found.fields.items():
        yield f"{section:<9}{f'{len(fields)} differ' if fields else 'equal'}"
        for name, (mine, others) in fields.items():
            yield f"  {name}: {_text(mine)} | {_text(others)}"


def _text(value: Any) -> str:
    text = "none" if value is None else json.dumps(value)
    return text if len(text) <= MAX_WIDTH else f"{text[:MAX_WIDTH]} …"
