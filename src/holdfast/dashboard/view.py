"""View: one run as the page shows it now: its record, its horizontal axis, its marks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from holdfast.dashboard.theme import Colors
from holdfast.observe.record.run_at import RunAt
from holdfast.observe.record.run_record import RunRecord
from holdfast.observe.units import clock

Axis = Literal["time", "step"]


@dataclass(frozen=True, kw_only=True)
class View(RunAt):
    """One run as the page shows it now.

    Args:
        colors: Of the page.
        axis: What the horizontal axis of its charts is.
        span_s: Of how many of the last seconds; None for all.
        compared: A run that is drawn dashed.
    """

    colors: Colors
    axis: Axis = "time"
    span_s: float | None = None
    compared: RunRecord | None = None

    @property
    def title(self) -> str:
        """Its name and when it began."""
        return f"{self.record.path.name}, {clock(self.start, self.now)}"

    def x(self, at: Sequence[float]) -> list[float]:
        """Moments of this run on the horizontal axis: seconds since its start, or steps."""
        return positions(self.record, self.start, self.axis, at)

    @cached_property
    def x_range(self) -> tuple[float, float]:
        """The ends of the horizontal axis."""
        begin = self.start if self.span_s is None else max(self.start, self.end - self.span_s)
        low, high = self.x([begin, self.end])
        return low, max(high, low + 1e-3)


def positions(record: RunRecord, start: float, axis: Axis, at: Sequence[float]) -> list[float]:
    """Moments of a run on the horizontal axis."""
    if axis == "time":
        return [each - start for each in at]
    columns = record.steps.columns
    if not columns["at"]:
        return [0.0] * len(at)
    found = np.interp(at, np.array(columns["at"]), np.array(columns["step"], dtype=float), left=0.0)
    return [float(each) for each in found]
