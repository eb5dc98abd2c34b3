"""Markdown: the report's sections in words, and as a file with pictures next to it."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.filesize import decimal

from holdfast_bench.report import drawing
from holdfast_bench.report.readiness import SIGNS
from holdfast_bench.report.report import Report
from holdfast_bench.report.theme import THEMES, style
from holdfast_bench.results.conditions import Conditions
from holdfast_bench.suite.catalogue import BY_NAME

FIGURES: Final = "figures"


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the report.

    Attributes:
        key: Name in links.
        heading: Heading.
        lines: Lines of Markdown below it.
    """

    key: str
    heading: str
    lines: tuple[str, ...]


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
        path = folder / FIGURES / f"architecture-{name}.svg"
        path.write_text(drawing.colored(architecture(), tokens), encoding="utf-8")
    path = folder / "report.md"
    path.write_text(text(report), encoding="utf-8")
    return path


def text(report: Report) -> str:
    """The content of `report.md`."""
    lines = ["# Benchmark report", "", *results(report)]
    for section in sections(report):
        lines += ["", f"## {section.heading}", "", *section.lines]
    return "\n".join(lines) + "\n"


def architecture() -> str:
    """The picture of the parts, whose colors and fonts are variables."""
    return Path(__file__).with_name("architecture.svg").read_text(encoding="utf-8")


def results(report: Report) -> Iterator[str]:
    """The most important results, one a line."""
    for bullet in report.bullets:
        yield f"* **{_text(bullet.value)}.** {_text(bullet.text)}{_link(report, bullet.figure)}"


def sections(report: Report) -> Iterator[Section]:
    """The sections in their order; those without content are left out."""
    headings = dict.fromkeys(table.heading for table in report.tables)
    for heading, lines in (
        ("Conditions", _conditions(report)),
        ("Architecture", _architecture()),
        ("Figures", _figures(report)),
        *((heading, _tables(report, heading)) for heading in headings),
        ("Published elsewhere", _published(report)),
        ("Recommendations", _recommendations(report)),
        ("Strengths and limits", _strengths(report)),
        ("Readiness", _readiness(report)),
        ("Reproduce", _reproduce()),
    ):
        if written := tuple(lines):
            yield Section(heading.split()[0].lower(), heading, written)


def _conditions(report: Report) -> Iterator[str]:
    """Facts of the machines, one a line; more of a kind if the results differ."""
    every = report.conditions
    yield from (f"* Machine: {text}" for text in dict.fromkeys(map(_machine, every)))
    yield from (f"* Software: {text}" for text in dict.fromkeys(map(_software, every)))
    loads = [each.load_before for each in every]
    yield f"* Load: {min(loads):.1f} to {max(loads):.1f} before a benchmark, of the last minute"
    first = min(each.started for each in every)
    last = max(each.started for each in every)
    yield f"* Measured: {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC"
    yield "* Workloads: small, CNN, 0.1 M parameters; large, MLP, 25 M; lm, GPT, 10 M; vit, 1.2 M"
    yield "* Method: in each round all systems run one after the other; medians, lowest and highest"
    yield from (f"* Left out: {name}: {_text(why)}" for name, why in report.absent.items())


def _machine(machine: Conditions) -> str:
    gpus = ", ".join(machine.gpus) or "no GPU"
    return _text(f"{machine.cores} cores of {machine.cpu}, {decimal(machine.memory_bytes)}, {gpus}")


def _software(machine: Conditions) -> str:
    versions = (f"{name} {version}" for name, version in machine.versions.items())
    return _text(", ".join([machine.system, *versions]))


def _figures(report: Report) -> Iterator[str]:
    for number, figure in enumerate(report.figures, 1):
        yield f"### {number} · {figure.question}"
        yield from (
            "",
            _text(figure.answer),
            "",
            *picture(figure.name, figure.question),
            "",
            _text(figure.caption),
            "",
        )
        yield f"Data `{figure.source}.json` · `{figure.command}`{figure.rounds}"
        yield ""
    if report.missing:
        yield f"Not measured: {', '.join(report.missing)}"


def _architecture() -> Iterator[str]:
    yield "What the measured parts are called in this report."
    yield from ("", *picture("architecture", "The parts of a run", "svg"))


def picture(name: str, text: str, kind: str = "png") -> Iterator[str]:
    """The lines that show a picture of each theme."""
    dark, light = (f"{FIGURES}/{name}-{theme}.{kind}" for theme in ("dark", "light"))
    yield "<picture>"
    yield f'  <source media="(prefers-color-scheme: dark)" srcset="{dark}">'
    yield f'  <img src="{light}" width="720" alt="{text}">'
    yield "</picture>"


def _tables(report: Report, heading: str) -> Iterator[str]:
    """The tables of a section."""
    for table in report.tables:
        if table.heading == heading:
            yield from (table.about, "", *_table(tuple(table.columns), table.cells), "")
            is_there = table.source in BY_NAME
            how = f"`holdfast bench {table.source}`" if is_there else "measured once"
            yield f"Data `{table.source}.json` · {how}"
            yield ""


def _published(report: Report) -> Iterator[str]:
    yield "Figures of other systems’ own reports, on other machines and models. No ratio is formed"
    yield "with them."
    yield ""
    yield from _table(
        ("Quantity", "Published elsewhere", "Measured here", "What differs"),
        (
            (each.quantity, each.published, each.ours or "not measured", each.differs)
            for each in report.references
        ),
    )


def _recommendations(report: Report) -> Iterator[str]:
    yield from _table(
        ("Question", "Set", "Because"),
        (
            (each.question, f"`{each.setting}`", f"{each.reason}{_link(report, each.figure)}")
            for each in report.recommendations
        ),
    )


def _strengths(report: Report) -> Iterator[str]:
    for heading, said in (("Strengths", report.strengths), ("Limits", report.limits)):
        yield from (f"### {heading}", "")
        yield from (f"* {_text(text)}{_link(report, figure)}" for text, figure in said)
        yield ""


def _readiness(report: Report) -> Iterator[str]:
    yield from _table(
        ("Aspect", "Status", "Shown by"),
        ((a.name, f"{SIGNS[a.status]} {a.status}", a.shown_by) for a in report.aspects),
    )


def _reproduce() -> Iterator[str]:
    yield "```console"
    yield "$ holdfast bench all --output results"
    yield "$ holdfast report results"
    yield "```"


def _text(text: object) -> str:
    """A text in which nothing is taken for HTML."""
    return html.escape(str(text), quote=False)


def _link(report: Report, figure: str) -> str:
    number = report.number_of(figure)
    return "" if number is None else f" (figure {number})"


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(names)} |"
    yield "|---" * len(names) + "|"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', ' ') for cell in row)} |"
