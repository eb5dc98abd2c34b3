"""`holdfast checkpoint pin`: have retention never delete a checkpoint."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.checkpoint.find import find_checkpoint, store_of
from holdfast.checkpoint.store import CheckpointStore
from holdfast.cli.checkpoint.reading import RunOrCheckpoint, reachable
from holdfast.errors import CheckpointError, JobError


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
