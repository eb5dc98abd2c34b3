"""The report's parts in their order, whatever it is written as."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast_bench.report import summary
from holdfast_bench.report.cited import Sentence
from holdfast_bench.report.figure import Figure
from holdfast_bench.report.figures import FIGURES
from holdfast_bench.report.published import REFERENCES, Reference
from holdfast_bench.report.readiness import ASPECTS, Aspect
from holdfast_bench.report.results import Results, Row, median
from holdfast_bench.report.summary import Bullet, Recommendation
from holdfast_bench.results.conditions import Conditions


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A row of the table of failure scenarios."""

    name: str
    recovery: str
    expected: str
    happened: str
    events: str
    passed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that is said.

    Attributes:
        folder: The directory of the results.
        conditions: Of each result.
        figures: Those that could be drawn, in their order.
        missing: The names of the others.
        scaling: Emulated sizes, ideal and actual.
        bullets, recommendations: See `report.summary`.
        strengths, limits: With the name of the figure that shows each.
        scenarios: Failure scenarios and what became of them.
        references: Published figures, with ours.
        aspects: What is proven.
        absent: Systems that could not be measured, and why.
    """

    folder: Path
    conditions: tuple[Conditions, ...]
    figures: tuple[Figure, ...]
    missing: tuple[str, ...]
    scaling: tuple[Row, ...]
    bullets: tuple[Bullet, ...]
    recommendations: tuple[Recommendation, ...]
    strengths: tuple[tuple[Sentence, str], ...]
    limits: tuple[tuple[Sentence, str], ...]
    scenarios: tuple[Scenario, ...]
    references: tuple[tuple[Reference, str], ...]
    aspects: Sequence[Aspect]
    absent: dict[str, str]

    def number_of(self, figure: str) -> int | None:
        """The number of a figure; None if it is not there."""
        names = [each.name for each in self.figures]
        return names.index(figure) + 1 if figure in names else None

    @property
    def scaling_table(self) -> list[tuple[str, ...]]:
        """Sizes with their speedup, ideal and actual, in words; the first row has the names."""
        names = ("scaling", "hosts", "step", "speedup", "ideal", "efficiency", "communication")
        return [
            (*names, "error of prediction"),
            *(
                (
                    row["scaling"],
                    f"{row['hosts']}",
                    f"{median(row['step_s']):.3g} s",
                    f"{row['speedup']:.2f}",
                    f"{row['ideal']}",
                    f"{100 * row['efficiency']:.1f} %",
                    f"{100 * row['sync_share']:.1f} %",
                    "–" if row["error_percent"] is None else f"{row['error_percent']:+.1f} %",
                )
                for row in self.scaling
            ),
        ]

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
        scaling=tuple(results.rows("emulate", measure="emulated")),
        bullets=tuple(summary.bullets(results, figures)),
        recommendations=tuple(summary.recommendations(results)),
        strengths=tuple(summary.strengths(results)),
        limits=tuple(summary.limits(results)),
        scenarios=tuple(
            Scenario(
                name=row["scenario"],
                recovery=row["recovery"],
                expected=row["expected"],
                happened=row["happened"],
                events=", ".join(row["events"]),
                passed=row["passed"],
            )
            for row in results.rows("scenarios")
        ),
        references=tuple((each, each.ours(results)) for each in REFERENCES),
        aspects=ASPECTS,
        absent={n: w for each in results.by_name.values() for n, w in each.absent.items()},
    )
