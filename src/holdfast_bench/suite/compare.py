"""Compare: what has changed between two results of a benchmark."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from holdfast.errors import JobError
from holdfast_bench.results.result import Result
from holdfast_bench.results.statistics import FEWEST, change
from holdfast_bench.suite.catalogue import BY_NAME, Benchmark, Better

Outcome = Literal["better", "worse", "same", "too few"]
SMALL_CHANGE: Final = 0.05
"""Changes up to this share are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One measured column of one row.

    Attributes:
        benchmark, row, column: What was measured.
        old, new: The medians.
        change_percent: From old to new.
        low_percent, high_percent: Its bounds, with 95 % confidence.
        outcome: `too few` if there are not enough measurements to tell.
    """

    benchmark: str
    row: str
    column: str
    old: float
    new: float
    change_percent: float
    low_percent: float
    high_percent: float
    outcome: Outcome

    def as_dict(self) -> dict[str, Any]:
        """Plain data of this comparison."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All that two results have in common.

    Attributes:
        compared: Each measured column of each row that both have.
        differences: What makes the results hard to compare, such as another machine.
    """

    compared: tuple[Compared, ...]
    differences: tuple[str, ...]

    @property
    def regressions(self) -> list[Compared]:
        """The changes for the worse."""
        return [each for each in self.compared if each.outcome == "worse"]


def compare(old: Path, new: Path, small: float = SMALL_CHANGE) -> Comparison:
    """Compare two result files, or the files with the same names in two folders.

    Args:
        old, new: What is compared.
        small: Changes up to this share count as none.

    Raises:
        JobError: A file is no result, or nothing can be compared.
    """
    pairs = _pairs(old, new)
    compared: list[Compared] = []
    differences: list[str] = []
    for before, after in pairs:
        compared += _compare_rows(before, after, small)
        differences += [f"{after.benchmark}: {text}" for text in _differences(before, after)]
    if not compared:
        raise JobError(f"{old} and {new} have no measured row in common")
    return Comparison(compared=tuple(compared), differences=tuple(dict.fromkeys(differences)))


def _pairs(old: Path, new: Path) -> list[tuple[Result, Result]]:
    if not (old.is_dir() and new.is_dir()):
        return [(Result.load(old), Result.load(new))]
    both = {each.name for each in old.glob("*.json") if (new / each.name).exists()}
    names = sorted(both & {f"{name}.json" for name in BY_NAME})
    if not names:
        raise JobError(f"{old} and {new} have no results of the same name")
    return [(Result.load(old / name), Result.load(new / name)) for name in names]


def _compare_rows(old: Result, new: Result, small: float) -> list[Compared]:
    benchmark = BY_NAME.get(new.benchmark)
    if benchmark is None or old.benchmark != new.benchmark:
        raise JobError(f"a result of {old.benchmark} does not compare with one of {new.benchmark}")
    before = {_name_of(row, benchmark): row for row in old.rows}
    found = []
    for row in new.rows:
        name = _name_of(row, benchmark)
        for column, better in benchmark.measured.items():
            then = _values(before.get(name, {}).get(column))
            now = _values(row.get(column))
            if then and now:
                what = (benchmark.name, name, column)
                found.append(_compared(what, better, then, now, small))
    return found


def _compared(
    what: tuple[str, str, str], better: Better, old: list[float], new: list[float], small: float
) -> Compared:
    found = change(old, new)
    outcome: Outcome = "same"
    if min(len(old), len(new)) < FEWEST:
        outcome = "too few"
    elif found.is_significant and abs(found.ratio - 1) > small:
        outcome = "worse" if (found.ratio > 1) == (better == "lower") else "better"
    percent = [round(100 * (each - 1), 1) for each in (found.ratio, found.low, found.high)]
    return Compared(
        benchmark=what[0],
        row=what[1],
        column=what[2],
        old=statistics.median(old),
        new=statistics.median(new),
        change_percent=percent[0],
        low_percent=percent[1],
        high_percent=percent[2],
        outcome=outcome,
    )


def _name_of(row: Mapping[str, Any], benchmark: Benchmark) -> str:
    return " ".join(str(row[key]) for key in benchmark.keys if row.get(key) is not None)


def _values(cell: Any) -> list[float]:
    """The measurements in a cell that are above 0."""
    values = cell.get("values", [cell["median"]]) if isinstance(cell, dict) else [cell]
    return [float(v) for v in values if isinstance(v, int | float) and v > 0]


def _differences(old: Result, new: Result) -> list[str]:
    pairs: dict[str, tuple[object, object]] = {
        "processor": (old.conditions.cpu, new.conditions.cpu),
        "cores": (old.conditions.cores, new.conditions.cores),
        "torch": (old.conditions.versions.get("torch"), new.conditions.versions.get("torch")),
        "options": (" ".join(old.options), " ".join(new.options)),
    }
    return [f"{name} {a} → {b}" for name, (a, b) in pairs.items() if a != b]
