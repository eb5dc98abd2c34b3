"""Stored: whether the checkpoints of a run agree with each other and with its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.store import CheckpointStore
from holdfast.data.loading.order import SampleOrder
from holdfast.errors import CheckpointError
from holdfast.record.audit.statement import Check, judged, not_checked
from holdfast.record.audit.step_checks import StepRow
from holdfast.record.units import count

_MAY_CHANGE: Final = frozenset({"epochs", "steps", "samples", "epoch_order"})
"""Facts of the data that differ where a run was extended, or its numerics have changed."""


def manifests_of(store: CheckpointStore) -> tuple[list[Manifest], list[str]]:
    """The manifests that can be read, newest first, and what is wrong with the others."""
    found = list[Manifest]()
    problems = list[str]()
    for name in store.committed():
        try:
            found.append(store.manifest(name))
        except (CheckpointError, OSError) as error:
            problems.append(str(error))
    return found, problems


def order_of(manifests: Sequence[Manifest]) -> SampleOrder | None:
    """The sample order of a run; None if it reads a stream, or no checkpoint is left."""
    return SampleOrder.of_facts(manifests[0].order) if manifests else None


def check_stored(
    manifests: Sequence[Manifest], rows: Sequence[StepRow], damaged: Sequence[str] = ()
) -> Check:
    """Check that checkpoints continue the same data in the same order, and have the loss that is
    recorded for their step.

    Args:
        manifests: Manifests that can be read, newest first.
        rows: The steps.
        damaged: Damage of the others, in words.
    """
    if not manifests and not damaged:
        return not_checked("checkpoints", "no checkpoint is left here")
    by_step = {row.step: row for row in rows}
    problems = list(damaged)
    newest = _facts(manifests[0].order) if manifests else {}
    for manifest in manifests:
        changed = [key for key, value in _facts(manifest.order).items() if newest.get(key) != value]
        if changed:
            problems.append(f"the checkpoint of step {manifest.step} has another {changed[0]}")
        row = by_step.get(manifest.step)
        if row is not None and row.loss != manifest.loss:
            problems.append(
                f"the checkpoint of step {manifest.step} has the loss {manifest.loss}, and "
                f"{row.loss} is recorded"
            )
    known = sum(manifest.step in by_step for manifest in manifests)
    text = (
        f"{count(len(manifests), 'checkpoint')} of the same data; the loss of {known} is that of "
    )
    return judged("checkpoints", problems, f"{text}the recorded step")


def _facts(order: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in order.items() if key not in _MAY_CHANGE}
