"""`holdfast checkpoint prune` and `pin`: what retention deletes now, and what it always keeps."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from holdfast.checkpoint.find import find_checkpoint, store_of
from holdfast.checkpoint.prune import Pruner
from holdfast.checkpoint.sealing.seal import UNSEALED, Seal
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.verify import Damage
from holdfast.cli.arguments import run_directory
from holdfast.cli.checkpoint.reading import RunOrCheckpoint, reachable, reading, settings_of
from holdfast.core.checkpoints.retention import RetentionPolicy
from holdfast.errors import CheckpointError, JobError
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
        what = "corrupt" if each.is_corrupt else "cannot be read now"
        print(f"{each.location}  {what}: {each.reason}")
    for name in pruning.delete:
        print(f"{name}  {'would be ' if dry_run else ''}deleted")
    if not pruning.delete:
        print("nothing to delete")


def pin(
    checkpoint: RunOrCheckpoint,
    remove: Annotated[
        bool, typer.Option("--remove", help="Let retention delete it again.")
    ] = False,
) -> None:
    """Keep a checkpoint forever, also while the run is live."""
    with reachable(checkpoint):
        path = find_checkpoint(checkpoint)
        store = store_of(path)
        if remove:
            if path.name not in store.pinned():
                raise JobError(f"{path} is not pinned; holdfast checkpoint ls says which are")
            store.unpin(path.name)
        else:
            if path.name in store.committed():
                _check(store, path.name)
            store.pin(path.name)
    print(f"{path}  {'no longer ' if remove else ''}pinned")


def _check(store: CheckpointStore, name: str) -> None:
    """Raises: CheckpointError: The checkpoint is damaged, as far as its manifest says."""
    try:
        store.manifest(name)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; it was not pinned: pin another checkpoint") from None
