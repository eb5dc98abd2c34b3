"""Metric: the result of evaluations that is shown, as a rule the accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast.record.run_record import RunRecord
from holdfast.record.units import digits, percent

_SHARES: Final = ("accuracy", "top5", "f1", "iou", "dice", "map")
"""Results between 0 and 1 that are shown in percent, if the name contains one of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownMetric:
    """A result of the evaluations.

    Attributes:
        name: Name that the task gives it.
        steps: Steps after which it was evaluated.
        values: Results.
    """

    name: str
    steps: list[int]
    values: list[float]

    @property
    def title(self) -> str:
        """For people."""
        return self.name.replace("_", " ").capitalize()

    @property
    def is_share(self) -> bool:
        """True if it is shown in percent."""
        return any(word in self.name.lower() for word in _SHARES) and max(self.values) <= 1

    def shown(self, value: float) -> str:
        """A value for people."""
        return percent(value) if self.is_share else digits(value)


def metric_of(record: RunRecord) -> ShownMetric | None:
    """The metric of a run that views show: the accuracy; else the first that is no loss, else the
    first; None without any.
    """
    names: dict[str, None] = {}
    for each in record.evaluations:
        names |= {name: None for name, value in each.results.items() if _is_number(value)}
    preferred = sorted(names, key=lambda name: (name != "accuracy", "loss" in name))
    if not preferred:
        return None
    name = preferred[0]
    points = [
        (each.step, float(each.results[name]))
        for each in record.evaluations
        if _is_number(each.results.get(name))
    ]
    return ShownMetric(
        name=name, steps=[step for step, _ in points], values=[value for _, value in points]
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
