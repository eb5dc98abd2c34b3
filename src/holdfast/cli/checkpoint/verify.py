"""`holdfast checkpoint verify`: compare every byte of checkpoints with its digest."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from holdfast.checkpoint.find import checkpoints_at
from holdfast.checkpoint.sealing.seal import UNSEALED, Seal
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.verify import CheckpointUnreadable, Damage, examine
from holdfast.cli.checkpoint.reading import reachable, reading
from holdfast.errors import CheckpointError
from holdfast.observe.units import NBSP, count, size


def verify(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|CHECKPOINT",
            help="Directory of a checkpoint, or of a run, all of whose checkpoints are read.",
        ),
    ],
    public_key: Annotated[
        Path | None,
        typer.Option(help="PEM file with a key that must have signed them."),
    ] = None,
) -> None:
    """Compare every byte of checkpoints with its digest; changes nothing."""
    seal = UNSEALED if public_key is None else Seal.trusting(public_key)
    with reachable(path):
        store, names = checkpoints_at(path, seal)
    damaged, whole = list[Damage](), list[str]()
    for name in names:
        size_bytes = _size_bytes(store, name)
        with reading(name, size_bytes) as advance:
            damage = examine(store, name, advance).damage
        damaged += damage
        if not damage:
            whole.append(name)
            print(f"{name}  verified  {size(size_bytes).replace(NBSP, ' ')}", flush=True)
        for each in damage:
            is_unreadable = isinstance(each, CheckpointUnreadable)
            what = "cannot be read now" if is_unreadable else "damaged"
            print(f"{name}  {what}: {each.reason}", flush=True)
    if damaged:
        raise CheckpointError(_summary(damaged, whole, len(names)))


def _size_bytes(store: CheckpointStore, name: str) -> int | None:
    with suppress(CheckpointError, OSError):
        return store.manifest(name).size_bytes
    return None


def _summary(damaged: list[Damage], whole: list[str], total: int) -> str:
    files = [f"{each.location}/{each.file}" for each in damaged]
    found = f"{total - len(whole)} of {count(total, 'checkpoint')}".replace(NBSP, " ")
    if whole:
        advice = f"a resumed run uses {whole[0]} at the latest; look after the disk"
    else:
        advice = "copy it back from a backup, or look after the disk"
    return f"{found} damaged: {', '.join(files)}; {advice}. Nothing was changed"
