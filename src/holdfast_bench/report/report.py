"""The report's parts in their order, whatever it is written as."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from holdfast_bench.report import summary
from holdfast_bench.report.cited import Sentence
from holdfast_bench.report.figure import Figure
from holdfast_bench.report.figures import FIGURES
from holdfast_bench.report.published import Reference, references
from holdfast_bench.report.readiness import Aspect, aspects
from holdfast_bench.report.results import Results
from holdfast_bench.report.summary import Bullet, Recommendation
from holdfast_bench.report.tables import Table, tables
from holdfast_bench.results.conditions import Conditions


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that is said.

    Attributes:
        folder: The directory of the results.
        conditions: Of each result.
        figures: Those that could be drawn, in their order.
        missing: The names of the others.
        bullets, recommendations: See `report.summary`.
        strengths, limits: With the name of the figure that shows each.
        tables: Results that have no figure.
        references: Published figures, with ours.
        aspects: What is proven.
        absent: Systems that could not be measured, and why.
    """

    folder: Path
    conditions: tuple[Conditions, ...]
    figures: tuple[Figure, ...]
    missing: tuple[str, ...]
    bullets: tuple[Bullet, ...]
    recommendations: tuple[Recommendation, ...]
    strengths: tuple[tuple[Sentence, str], ...]
    limits: tuple[tuple[Sentence, str], ...]
    tables: tuple[Table, ...]
    references: tuple[Reference, ...]
    aspects: tuple[Aspect, ...]
    absent: dict[str, str]

    def number_of(self, figure: str) -> int | None:
        """The number of a figure; None if it is not there."""
        names = [each.name for each in self.figures]
        return names.index(figure) + 1 if figure in names else None

    @property
    def sentences(self) -> list[Sentence]:
        """Every sentence with numbers."""
        return [
            *(each.answer for each in self.figures),
            *(part for each in self.bullets for part in (each.value, each.text)),
            *(part for each in self.recommendations for part in (each.setting, each.reason)),
            *(sentence for sentence, _ in (*self.strengths, *self.limits)),
        ]


def build(results: Results) -> Report:
    """The report of all results of a directory."""
    drawn = {name: make(results) for name, make in FIGURES.items()}
    figures = {name: figure for name, figure in drawn.items() if figure is not None}
    return Report(
        folder=results.folder,
        conditions=tuple(each.conditions for each in results.by_name.values()),
        figures=tuple(figures.values()),
        missing=tuple(name for name in FIGURES if name not in figures),
        bullets=tuple(summary.bullets(results)),
        recommendations=tuple(summary.recommendations(results)),
        strengths=tuple(summary.strengths(results)),
        limits=tuple(summary.limits(results)),
        tables=tuple(tables(results)),
        references=tuple(references(results)),
        aspects=tuple(aspects(results)),
        absent={n: w for each in results.by_name.values() for n, w in each.absent.items()},
    )
