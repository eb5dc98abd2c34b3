"""`holdfast checkpoint pin`: have retention never delete a checkpoint."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.checkpoint.find import find_checkpoint, store_of
from holdfast.cli.checkpoint.arguments import RunOrCheckpoint
from holdfast.cli.checkpoint.reading import reachable


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
            store.unpin(path.name)
        else:
            store.pin(path.name)
    print(f"{path}  {'no longer ' if remove else ''}pinned")
