"""Step parts: what the time of a step consists of, the mean of all workers."""

from __future__ import annotations

from math import isnan
from typing import Final

from holdfast.record.breakdown import PARTS, part_seconds
from holdfast.record.views.run_at import WORKER_STEPS, RunAt

OTHER: Final = "other"
"""What no part is measured for."""


def parts_of(run: RunAt) -> dict[str, float]:
    """The share of each part of a step, their sum is 1; empty without a measured step."""
    rows = run.worker_times
    taken = run.record.steps.columns["seconds"][-WORKER_STEPS:]
    seconds = [each for each in taken if not isnan(each)]
    if not rows or not seconds:
        return {}
    means = [sum(part) / len(rows) for part in zip(*map(part_seconds, rows), strict=True)]
    total = max(sum(means), sum(seconds) / len(seconds))
    if not total:
        return {}
    shares = {name: mean / total for name, mean in zip(PARTS, means, strict=True)}
    return {**shares, OTHER: max(0.0, 1 - sum(shares.values()))}
