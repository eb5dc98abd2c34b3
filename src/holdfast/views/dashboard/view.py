"""View: one run as the page shows it now: its record, its horizontal axis, its marks; and what the
address of the page says of that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import floor, log10
from typing import Final, Literal, Self

import numpy as np

from holdfast.record.run_record import RunRecord
from holdfast.record.units import clock
from holdfast.record.views.run_at import RunAt
from holdfast.views.dashboard.run_workers import RunWorkers
from holdfast.views.dashboard.theme import Colors

Axis = Literal["time", "step"]
TICKS: Final = 60
"""A chart of a run that trains changes so often at least, while the run takes as long again."""
AXES: Final[Mapping[str, Axis]] = {"Time": "time", "Step": "step"}
"""Horizontal axes by their words."""
SPANS: Final[Mapping[str, float | None]] = {"All": None, "10 min": 600.0, "1 min": 60.0}
"""Spans of the charts, the last seconds, by their words."""
_SPAN_NAMES: Final = {"All": "all", "10 min": "10min", "1 min": "1min"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLink:
    """Choice of a visitor, as the address of the page has it; a link and a reload keep that.

    Attributes:
        run: The run's name.
        axis, span: Words of `AXES` and `SPANS`.
    """

    run: str
    axis: str = "Time"
    span: str = "All"

    @classmethod
    def parse(cls, query: Mapping[str, str], names: Sequence[str]) -> Self:
        """Read the query of an address; unknown words mean the default.

        Args:
            query: Query of the address.
            names: Names of the runs that there are, the one that is shown by default first.
        """
        axes: dict[str, str] = {value: word for word, value in AXES.items()}
        spans = {value: word for word, value in _SPAN_NAMES.items()}
        run = query.get("run", "")
        return cls(
            run=run if run in names else names[0],
            axis=axes.get(query.get("axis", ""), "Time"),
            span=spans.get(query.get("span", ""), "All"),
        )

    def query(self) -> dict[str, str]:
        """The address's part for it."""
        return {"run": self.run, "axis": AXES[self.axis], "span": _SPAN_NAMES[self.span]}


@dataclass(frozen=True, kw_only=True)
class View(RunAt):
    """One run as the page shows it now.

    Args:
        colors: Colors of the page.
        axis: Horizontal axis of its charts.
        span_s: Last seconds that are shown; None for all.
        compared: A run that is drawn dashed.
    """

    colors: Colors
    axis: Axis = "time"
    span_s: float | None = None
    compared: RunRecord | None = None

    @cached_property
    def fleet(self) -> RunWorkers:
        """Its workers by host."""
        return RunWorkers.of(self.record, self.colors)

    @property
    def is_reading(self) -> bool:
        """True if steps are there that are not read yet."""
        return self.record.read_share < 1

    @cached_property
    def drawn_until(self) -> float:
        """Until when charts are drawn: `end`, except for the last 1 to 2 % of a run that trains.

        So a chart stays the same for a while. The browser replaces one that has changed, and shows
        nothing in between; figures and keys are as new as they can be.
        """
        if self.has_ended:
            return self.end
        tick = _tick_s(self.elapsed_s)
        return max(self.start, self.start + tick * floor(self.elapsed_s / tick))

    @property
    def first_row(self) -> int:
        """The step at the left end of the charts; the axis of values fits those that are shown."""
        row = int(np.searchsorted(self.record.steps.array("at"), self.begin))
        return max(0, row - 1)

    @property
    def drawn_rows(self) -> int:
        """Count of the steps in the charts."""
        return int(np.searchsorted(self.record.steps.array("at"), self.drawn_until, side="right"))

    @property
    def begin(self) -> float:
        """Begin of the horizontal axis, Unix time, seconds."""
        end = self.drawn_until
        return self.start if self.span_s is None else max(self.start, end - self.span_s)

    @property
    def stepped_until(self) -> float:
        """Until when there is a speed: that of a run that has ended is not 0."""
        at = self.record.steps.columns["at"]
        return float(at[-1]) if at and (self.has_ended or self.is_reading) else self.end

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
        low, high = self.x([self.begin, self.drawn_until])
        return low, max(high, low + 1e-3)


def _tick_s(elapsed_s: float) -> float:
    """For how long a chart stays the same: 2, 5, 10, … s."""
    most = max(2.0, elapsed_s / TICKS)
    ten = 10.0 ** floor(log10(most))
    return max(factor * ten for factor in (1, 2, 5) if factor * ten <= most)


def positions(record: RunRecord, start: float, axis: Axis, at: Sequence[float]) -> list[float]:
    """Moments of a run on the horizontal axis."""
    if axis == "time":
        return [each - start for each in at]
    steps = record.steps
    if not len(steps):
        return [0.0] * len(at)
    found = np.interp(at, steps.array("at"), steps.array("step"), left=0.0)
    return [float(each) for each in found]
