"""PageLink: what the address of the page says of its content; a link and a reload keep that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from holdfast.views.dashboard.view import Axis

AXES: Final[Mapping[str, Axis]] = {"Time": "time", "Step": "step"}
"""Horizontal axes by their words."""
SPANS: Final[Mapping[str, float | None]] = {"All": None, "10 min": 600.0, "1 min": 60.0}
"""Spans of the charts, the last seconds, by their words."""
_SPAN_NAMES: Final = {"All": "all", "10 min": "10min", "1 min": "1min"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLink:
    """Choice of a visitor, as the address of the page has it.

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
