"""Inventory: all that is in the store of a run, and why it is there, without reading the parts."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from holdfast.checkpoint import names
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.store import CheckpointStore
from holdfast.core.checkpoints.retention import (
    Condition,
    FoundCheckpoint,
    Reason,
    RetentionPolicy,
    reasons,
)
from holdfast.errors import CheckpointError


class Kind(enum.StrEnum):
    """Kind of a thing in a store."""

    CHECKPOINT = "checkpoint"
    DAMAGED = "damaged"
    QUARANTINED = "quarantined"
    DRAFT = "draft"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Something in a store.

    Attributes:
        name: Its name.
        kind: Its kind.
        manifest: Its manifest, if it is a checkpoint.
        kept: Causes for which retention keeps it, as far as manifests tell.
        problem: Damage; empty if there is none.
    """

    name: str
    kind: Kind
    manifest: Manifest | None = None
    kept: tuple[Reason, ...] = ()
    problem: str = ""

    @property
    def step(self) -> int:
        return names.step_of(self.name)

    @property
    def size_bytes(self) -> int | None:
        """The size of its parts; None if that is not known."""
        if self.manifest is None:
            return None
        return sum(part.size_bytes for part in self.manifest.parts)


def inventory(store: CheckpointStore, policy: RetentionPolicy) -> list[Item]:
    """All that is in a store, newest first.

    Args:
        store: The store.
        policy: Rules for keeping checkpoints.

    Raises:
        OSError: It cannot be reached.
    """
    checkpoints = [_checkpoint(store, name) for name in store.committed()]
    pinned = store.pinned()
    kept = reasons([_found(each, each.name in pinned) for each in checkpoints], policy)
    others = [
        Item(name=name, kind=Kind.QUARANTINED if names.is_quarantined(name) else Kind.DRAFT)
        for name in store.storage.names()
        if names.is_quarantined(name) or names.is_partial(name)
    ]
    items = [*(replace(each, kept=kept.get(each.name, ())) for each in checkpoints), *others]
    return sorted(items, key=lambda item: (item.step, item.name), reverse=True)


def _checkpoint(store: CheckpointStore, name: str) -> Item:
    try:
        return Item(name=name, kind=Kind.CHECKPOINT, manifest=store.manifest(name))
    except (CheckpointError, OSError) as error:  # the others can still be shown
        return Item(name=name, kind=Kind.DAMAGED, problem=str(error))


def _found(item: Item, is_pinned: bool) -> FoundCheckpoint:
    """A checkpoint as retention would see it if its parts are as good as its manifest."""
    manifest = item.manifest
    return FoundCheckpoint(
        name=item.name,
        step=item.step,
        condition=Condition.CORRUPT if manifest is None else Condition.VERIFIED,
        best_step=None if manifest is None else manifest.best.kept_step,
        is_pinned=is_pinned,
    )
