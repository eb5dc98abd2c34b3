"""Results: what benchmarks have stored in a directory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from holdfast.errors import JobError
from holdfast_bench.results.result import Result

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Results:
    """The results of a directory.

    Attributes:
        folder: The directory.
        by_name: Each result by its benchmark.
    """

    folder: Path
    by_name: Mapping[str, Result]

    @classmethod
    def load(cls, folder: Path) -> Results:
        """Read all results of a directory.

        Raises:
            JobError: There is none, or one is damaged.
        """
        paths = sorted(folder.glob("*.json"))
        found = {path.stem: Result.load(path) for path in paths if path.stem != SCHEMA}
        if not found:
            raise JobError(
                f"{folder} has no results; measure some with holdfast bench all --output {folder}"
            )
        return cls(folder, found)

    def rows(self, benchmark: str, **wanted: Any) -> list[Row]:
        """The rows of a benchmark that have these values."""
        return list(self._rows(benchmark, wanted))

    def _rows(self, benchmark: str, wanted: Mapping[str, Any]) -> Iterator[Row]:
        result = self.by_name.get(benchmark)
        for row in result.rows if result is not None else ():
            if all(row.get(name) == value for name, value in wanted.items()):
                yield row

    def numbers(self, benchmark: str) -> set[float]:
        """Every number in a result."""
        result = self.by_name[benchmark]
        return set(_numbers(result.model_dump(mode="json")))

    def rounds(self, benchmark: str) -> str:
        """Number of rounds, as a caption says it."""
        rounds = self.by_name[benchmark].rounds
        return "" if rounds is None else f" · n = {rounds}"


SCHEMA = "result.schema"
_ENDS: Final = {
    "detect": "announced_s", "restart": "released_s", "state": "resumed_s", "first": "committed_s",
}  # fmt: skip
"""Moments of a live recovery since the failure, by the phase that each ends."""


def median(cell: Any) -> float:
    """The median of a cell, or its only value."""
    return float(cell["median"] if isinstance(cell, dict) else cell)


def bounds(cell: Any) -> tuple[float, float]:
    """The lowest and the highest value of a cell."""
    if isinstance(cell, dict):
        return float(cell["min"]), float(cell["max"])
    return float(cell), float(cell)


def live_phases(row: Row) -> dict[str, float]:
    """Seconds of each phase of a live recovery."""
    moments = [0.0, *(median(row.get(name) or 0.0) for name in _ENDS.values())]
    spent = [max(0.0, end - start) for start, end in pairwise(moments)]
    return dict(zip(_ENDS, spent, strict=True))


def values(cell: Any) -> list[float]:
    """Every measurement of a cell."""
    return [float(each) for each in cell["values"]] if isinstance(cell, dict) else [float(cell)]


def noise(measured: Sequence[float], neutral: float | None = None) -> str:
    """Why measurements say little; empty if they say something.

    Args:
        measured: One of each round.
        neutral: The value that means no difference.
    """
    if len(measured) < 2:
        return "measured once"
    if neutral is not None and min(measured) <= neutral <= max(measured):
        return f"noise around {neutral:g}"
    return ""


def remark(measured: Sequence[float], neutral: float | None = None) -> str:
    """The same as a sentence that follows another one."""
    doubt = noise(measured, neutral)
    return f" {doubt.capitalize()}." if doubt else ""


def _numbers(value: Any) -> Iterator[float]:
    match value:
        case bool():
            return
        case int() | float():
            yield float(value)
        case dict():
            for each in value.values():
                yield from _numbers(each)
        case list() | tuple():
            for each in value:
                yield from _numbers(each)
