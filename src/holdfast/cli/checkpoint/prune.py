"""`holdfast checkpoint prune`: delete the checkpoints that retention does not keep, now."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from holdfast.checkpoint.prune import Pruner
from holdfast.checkpoint.sealing.seal import UNSEALED, Seal
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.verify import CheckpointCorrupt, Damage
from holdfast.cli.arguments import run_directory
from holdfast.cli.checkpoint.reading import reachable, reading, settings_of
from holdfast.core.checkpoints.retention import RetentionPolicy
from holdfast.rundir.run_directory import held


def prune(
    run: Annotated[Path, typer.Argument(help="Directory of a run that has ended.")],
    keep: Annotated[
        int | None,
        typer.Option(min=1, help="How many of the newest to keep; default: as the job says."),
    ] = None,
    keep_every: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Keep the first at or after each multiple of so many steps; default: as the job "
            "says.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be deleted.")
    ] = False,
) -> None:
    """Delete the checkpoints that retention does not keep, once the others are verified."""
    path = run_directory(run)
    settings = settings_of(path)
    policy = RetentionPolicy(
        last=settings.keep if keep is None else keep,
        every=settings.keep_every if keep_every is None else keep_every,
    )
    seal = UNSEALED if settings.sign is None else Seal.trusting(settings.sign)
    store = CheckpointStore.of_run(path, seal)
    damaged = list[Damage]()
    with reachable(path), nullcontext() if dry_run else held(path):
        if not dry_run:
            store.remove_partial()
        with reading("verifying") as advance:
            pruner = Pruner(store, policy, damaged.append, advance)
            pruning = pruner.plan()
        if dry_run:
            damaged += pruning.corrupt
        else:
            pruner.carry_out(pruning)
    for each in damaged:
        what = "corrupt" if isinstance(each, CheckpointCorrupt) else "cannot be read now"
        print(f"{each.location}  {what}: {each.reason}")
    for name in pruning.delete:
        print(f"{name}  {'would be ' if dry_run else ''}deleted")
    if not pruning.delete:
        print("nothing to delete")
