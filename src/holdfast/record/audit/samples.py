"""Samples: whether each sample was used once per epoch, by computing the order again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from holdfast.data.loading.order import SEQUENTIAL, SHUFFLED, SampleOrder
from holdfast.record.audit.statement import NO_STEP, Check, judged, not_checked
from holdfast.record.audit.step_checks import Epoch, StepRow
from holdfast.record.units import count

MAX_SAMPLES: Final = 1 << 26
"""Most samples of all epochs that are computed: about ten seconds."""


def check_samples(
    rows: Sequence[StepRow], epochs: Sequence[Epoch], order: SampleOrder | None
) -> Check:
    """Check that the steps of each epoch have used each sample once.

    Args:
        rows: The steps.
        epochs: Their epochs.
        order: The sample order; None for a stream.
    """
    if not epochs:
        return not_checked("samples", NO_STEP)
    if order is None:
        return _check_stream(epochs)
    if order.sampler not in (SHUFFLED, SEQUENTIAL):
        return not_checked("samples", f"a {order.sampler} decides which samples an epoch has")
    checked = epochs[: MAX_SAMPLES // order.num_samples]
    if not checked:
        return not_checked("samples", f"{count(order.num_samples, 'sample')} are too many")
    steps = dict[int, set[int]]()
    for row in rows:
        steps.setdefault(row.epoch, set()).add(row.step)
    problems = [each for epoch in checked for each in _problems(epoch, steps[epoch.number], order)]
    return judged("samples", problems, _text(checked, len(epochs), order))


def _check_stream(epochs: Sequence[Epoch]) -> Check:
    """Epochs of a stream can only be compared with each other."""
    complete = [epoch.samples for epoch in epochs if epoch.is_complete]
    if len(set(complete)) > 1:
        sizes = ", ".join(map(str, complete))
        return judged("samples", [f"the epochs have unlike numbers of samples: {sizes}"], "")
    found = f"; {count(len(complete), 'epoch')} of {complete[0]} samples each" if complete else ""
    return not_checked("samples", f"a stream decides itself which samples it gives{found}")


def _problems(epoch: Epoch, steps: set[int], order: SampleOrder) -> list[str]:
    times = np.zeros(order.num_samples, dtype=np.uint8)
    used = 0
    for step in sorted(steps):
        indices = order.indices(step - 1, range(order.num_shards))
        times[indices] += 1  # once, if a step had a sample twice
        used += len(indices)
    repeated = int((times > 1).sum()) + used - int(times.sum(dtype=np.int64))
    problems = list[str]()
    if repeated:
        problems.append(f"epoch {epoch.number} used {count(repeated, 'sample')} more than once")
    never = int((times == 0).sum()) - _left_out(order)
    if epoch.is_complete and never:
        problems.append(f"epoch {epoch.number} never used {count(never, 'sample')}")
    return problems


def _left_out(order: SampleOrder) -> int:
    """Samples of the short last batch, if that is left out."""
    return order.num_samples % order.batch_size if order.drops_last else 0


def _text(checked: Sequence[Epoch], total: int, order: SampleOrder) -> str:
    complete = sum(epoch.is_complete for epoch in checked)
    each = f"each of {count(order.num_samples, 'sample')} once"
    if left_out := _left_out(order):
        each += f", but for {left_out} that are left out at the end of an epoch"
    parts = [f"{count(complete, 'complete epoch')} used {each}"]
    if complete < len(checked):
        parts.append(f"epoch {checked[-1].number}, which is not complete, used none twice")
    if len(checked) < total:
        parts.append(f"{count(total - len(checked), 'epoch')} not checked, too many samples")
    return "; ".join(parts)
