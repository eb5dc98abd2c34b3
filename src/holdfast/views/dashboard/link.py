"""Link: what the address of the page says of what it shows, so that a link and a reload keep it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from holdfast.views.dashboard.view import Axis

AXES: Final[Mapping[str, Axis]] = {"Time": "time", "Step": "step"}
"""What the horizontal axis is, by its word."""
SPANS: Final[Mapping[str, float | None]] = {"All": None, "10 min": 600.0, "1 min": 60.0}
"""Of how many of the last seconds the charts are, by their word."""
_SPAN_NAMES: Final = {"All": "all", "10 min": "10min", "1 min": "1min"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What a visitor has chosen to see.

    Attributes:
        run: The run's name.
        axis, span: Words of `AXES` and `SPANS`.
    """

    run: str
    axis: str = "Time"
    span: str = "All"

    @classmethod
    def parse(cls, query: Mapping[str, str], names: Sequence[str]) -> Self:
        """What an address says; where that is unknown, what is shown by default.

        Args:
            query: Of the address.
            names: Of the runs that there are, the one that is shown by default first.
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
