"""`holdfast audit`: what the record of a run proves about it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from holdfast.cli.arguments import Json, NewestRun, run_directory
from holdfast.cli.status import FAILED_STATUS
from holdfast.record.units import NBSP, count, named

if TYPE_CHECKING:
    from holdfast.record.audit.audit import Audit
    from holdfast.record.audit.lineage import Generation, Life


def audit(run: NewestRun = None, as_json: Json = False) -> None:
    """Check from the record of a run that every sample was counted once per epoch, and show which
    start and generation computed each step.
    """
    from holdfast.record.audit.audit import audit as audited  # imports numpy

    path = run_directory(run)
    found = audited(path)
    if as_json:
        print(json.dumps({"run": str(path), "failed": found.has_failed, **asdict(found)}))
    else:
        for line in _lines(path, found):
            print(line.replace(NBSP, " "))
    if found.has_failed:
        raise typer.Exit(FAILED_STATUS)


def _lines(path: Path, found: Audit) -> Iterator[str]:
    yield f"{path}: {count(found.steps, 'step')}, {count(len(found.epochs), 'epoch')}"
    for life in found.lives:
        yield from _life(life)
    yield "steps that count"
    for segment in found.segments:
        yield (
            f"  {segment.first} to {segment.last}: start {segment.life}, generation "
            f"{segment.generation}, {count(segment.workers, 'worker')}"
        )
    yield "checks"
    for check in found.checks:
        yield f"  {check.outcome:<12}{check.name}: {check.text}"


def _life(life: Life) -> Iterator[str]:
    begun = (
        "" if life.at is None else time.strftime(" at %Y-%m-%d %H:%M:%S", time.localtime(life.at))
    )
    asked = "" if life.workers is None else f", {count(life.workers, 'worker')}"
    yield f"start {life.number}{begun}{asked}"
    for each in life.generations:
        yield f"  generation {each.number} {_beginning(each)}; {named(each.ranks)}"
        for cause in each.causes:
            yield f"    because {cause}"
    yield f"  {life.ending or 'no end is recorded'}"


def _beginning(generation: Generation) -> str:
    if not generation.from_checkpoint:
        return f"continued after step {generation.step}"
    if not generation.step:
        return "from the beginning"
    recomputed = generation.recomputed
    again = "an unknown number of steps" if recomputed is None else count(recomputed, "step")
    return f"from the checkpoint of step {generation.step}, {again} computed again"
