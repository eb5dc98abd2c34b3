"""Markdown: the report as a file with pictures next to it, for a repository."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from holdfast_bench.report import drawing
from holdfast_bench.report.conditions import facts
from holdfast_bench.report.figure import Figure
from holdfast_bench.report.readiness import SIGNS
from holdfast_bench.report.report import Report
from holdfast_bench.report.theme import THEMES, style

FIGURES = "figures"


def write(report: Report, folder: Path) -> Path:
    """Write `report.md` and its pictures; returns its path.

    Raises:
        OSError: They cannot be written.
    """
    (folder / FIGURES).mkdir(parents=True, exist_ok=True)
    for name, tokens in THEMES.items():
        with style(tokens):
            for figure in report.figures:
                path = folder / FIGURES / f"{figure.name}-{name}.png"
                path.write_bytes(drawing.png(figure.draw(tokens)))
    path = folder / "report.md"
    path.write_text("\n".join(_lines(report)) + "\n", encoding="utf-8")
    return path


def _lines(report: Report) -> Iterator[str]:
    yield "# Benchmark report"
    yield ""
    for bullet in report.bullets:
        yield f"* **{bullet.value}.** {bullet.text}{_link(report, bullet.figure)}"
    yield from _section("Conditions")
    yield from (f"* {name}: {text}" for name, text in facts(report))
    yield from _section("Figures")
    for number, figure in enumerate(report.figures, 1):
        yield from _figure(number, figure)
    yield from (f"* Not measured: {name}" for name in report.missing)
    if report.scaling:
        yield from _section("Ideal and actual scaling")
        sizes, *measured = report.scaling_table
        yield from _table(sizes, measured)
    if report.scenarios:
        yield from _section("Failure scenarios")
        rows = [
            (each.name, each.recovery, each.expected, each.happened, "yes" if each.passed else "NO")
            for each in report.scenarios
        ]
        yield from _table(("scenario", "recovery", "expected", "happened", "passed"), rows)
    yield from _section("Published elsewhere")
    yield "On other machines and models; no ratio is formed with these figures."
    yield ""
    names = ("quantity", "published elsewhere", "measured here", "same thing?")
    yield from _table(
        names,
        [
            (r.quantity, r.published, ours or "–", f"{r.same}: {r.why}")
            for r, ours in report.references
        ],
    )
    yield from _section("Recommendations")
    yield from _table(
        ("question", "set", "because"),
        [
            (each.question, f"`{each.setting}`", f"{each.reason}{_link(report, each.figure)}")
            for each in report.recommendations
        ],
    )
    for heading, said in (("Strengths", report.strengths), ("Limits", report.limits)):
        yield from _section(heading)
        yield from (f"* {text}{_link(report, figure)}" for text, figure in said)
    yield from _section("Readiness")
    rows_ = [(a.name, f"{SIGNS[a.status]} {a.status}", f"`{a.test}`") for a in report.aspects]
    yield from _table(("aspect", "status", "shown by"), rows_)
    yield from _section("Reproduce")
    yield from (
        "```console",
        "$ holdfast bench all --output results",
        "$ holdfast report results",
        "```",
    )


def _section(heading: str) -> Iterator[str]:
    yield from ("", f"## {heading}", "")


def _figure(number: int, figure: Figure) -> Iterator[str]:
    yield from (f"### {number} · {figure.question}", "", str(figure.answer), "")
    dark, light = (f"{FIGURES}/{figure.name}-{name}.png" for name in ("dark", "light"))
    yield "<picture>"
    yield f'  <source media="(prefers-color-scheme: dark)" srcset="{dark}">'
    yield f'  <img src="{light}" width="720" alt="{figure.question}">'
    yield from ("</picture>", "", f"{figure.caption} Data: `{figure.source}.json`.", "")


def _link(report: Report, figure: str) -> str:
    number = report.number_of(figure)
    return "" if number is None else f" (figure {number})"


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(names)} |"
    yield "|---" * len(names) + "|"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', ' ') for cell in row)} |"
