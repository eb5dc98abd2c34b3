"""Page: the report as one HTML file that loads nothing from anywhere."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from holdfast_bench.report import drawing
from holdfast_bench.report.conditions import facts
from holdfast_bench.report.figure import Figure
from holdfast_bench.report.readiness import SIGNS, Status
from holdfast_bench.report.report import Report
from holdfast_bench.report.theme import DARK, LIGHT, Tokens, font_files, style

_HERE: Final = Path(__file__).parent
_SANS: Final = '"Holdfast Sans","Source Sans 3",system-ui,sans-serif'
_MONO: Final = '"Holdfast Mono","Source Code Pro",ui-monospace,monospace'
_CLASSES: Final[dict[Status, str]] = {"proven": "ok", "emulated": "half", "not yet proven": "no"}
_UNITS: Final = re.compile(r"(\d) (%|s|ms|h|×|GiB|GB|MB|KB/s|Gbit/s)(?!\w)")


def write(report: Report, folder: Path) -> Path:
    """Write `report.html`; returns its path.

    Raises:
        OSError: It cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with style(LIGHT):
        pictures = {
            figure.name: drawing.svg(figure.draw(LIGHT), figure.name, figure.question)
            for figure in report.figures
        }
    path = folder / "report.html"
    path.write_text("\n".join(_page(report, pictures)), encoding="utf-8")
    return path


def _page(report: Report, pictures: dict[str, str]) -> Iterator[str]:
    sections = list(_sections(report, pictures))
    yield '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width,initial-scale=1">'
    yield f"<title>holdfast · benchmark report</title>\n<style>{_styles()}</style>"
    yield '<div class="page"><nav aria-label="Contents">'
    yield f'<div class="mark">{(_HERE / "mark.svg").read_text(encoding="utf-8")}holdfast</div><ol>'
    yield "".join(f'<li><a href="#{key}">{heading}</a>' for key, heading, _ in sections)
    yield "</ol></nav><main>"
    yield from _header(report)
    for key, heading, body in sections:
        yield f'<section id="{key}"><h2>{heading}</h2>{_units(body)}</section>'
    yield "<footer>Every number of a sentence is in the data of the figure that it cites; a test"
    yield "compares them. This file loads nothing from a network.</footer></main></div></html>\n"


def _styles() -> str:
    faces = "".join(
        f"@font-face{{font-family:'{family}';font-weight:{weight};"
        f"src:url({drawing.embedded(path.read_bytes(), 'font/ttf')})}}"
        for family, weight, path in font_files()
    )
    roots = (
        f":root{{color-scheme:light;--sans:{_SANS};--mono:{_MONO};{_variables(LIGHT)}}}"
        f"@media (prefers-color-scheme:dark){{:root{{color-scheme:dark;{_variables(DARK)}}}}}"
    )
    return faces + roots + (_HERE / "page.css").read_text(encoding="utf-8")


def _variables(tokens: Tokens) -> str:
    return "".join(f"--{name}:{color};" for name, color in tokens.items())


def _header(report: Report) -> Iterator[str]:
    when = f"{max(each.started for each in report.conditions):%d %B %Y, %H:%M} UTC"
    yield f"<header id=results><h1>Benchmark report</h1><p>newest result of {when}</p>"
    yield '<ul class="results panel">'
    for bullet in report.bullets:
        first, _, rest = str(bullet.value).partition(" ")
        unit, _, more = rest.partition(" ")
        if unit in {"s", "%", "×"}:
            first = f"{first} {unit}"
            rest = more
        value = _units(f"{html.escape(first)} <small>{html.escape(rest)}</small>")
        text = _units(html.escape(str(bullet.text)))
        yield f'<li><div class="v">{value}</div><div class="w">{text}</div>'
        yield f'<div class="f">{_link(report, bullet.figure)}</div>'
    yield "</ul></header>"


def _sections(report: Report, pictures: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    """The key, the heading and the content of each section."""
    known = "".join(f"<dt>{n}</dt><dd>{html.escape(text)}</dd>" for n, text in facts(report))
    yield "conditions", "Conditions", f'<div class="panel"><dl>{known}</dl></div>'
    drawing_of_parts = (_HERE / "architecture.svg").read_text(encoding="utf-8")
    text = "<p>What the measured parts are called in this report.</p>"
    yield (
        "architecture",
        "Architecture",
        f'{text}<div class="panel"><div class="fig">{drawing_of_parts}</div></div>',
    )
    numbered = list(enumerate(report.figures, 1))
    body = "".join(_figure(number, figure, pictures[figure.name]) for number, figure in numbered)
    absent = ", ".join(report.missing)
    tail = f'<p class="table-note">Not measured: {absent}.</p>' if absent else ""
    yield "figures", "Figures", body + tail
    if report.scaling:
        names, *rows = report.scaling_table
        yield "sizes", "Ideal and actual scaling", _table(names, rows)
    if report.scenarios:
        yield "scenarios", "Failure scenarios", _scenarios(report)
    yield "published", "Published elsewhere", _published(report)
    yield "recommendations", "Recommendations", _recommendations(report)
    yield "limits", "Strengths and limits", _strengths(report)
    yield "readiness", "Readiness", _readiness(report)
    commands = "holdfast bench all --output results\nholdfast report results"
    yield "reproduce", "Reproduce", f'<div class="panel"><pre>{commands}</pre></div>'


def _figure(number: int, figure: Figure, picture: str) -> str:
    source = f"Data <code>{figure.source}.json</code> · <code>{html.escape(figure.command)}</code>"
    return (
        f'<figure id="fig-{figure.name}"><h3>{number} · {figure.question}</h3>'
        f'<p class="a">{html.escape(str(figure.answer))}</p><div class="fig">{picture}</div>'
        f"<figcaption>{html.escape(figure.caption)}"
        f'<span class="src">{source}{figure.rounds}</span></figcaption></figure>'
    )


def _scenarios(report: Report) -> str:
    rows = [
        (
            html.escape(each.name),
            each.recovery,
            each.expected,
            html.escape(each.happened),
            _chip("ok", "✓") if each.passed else _chip("no", "✕"),
        )
        for each in report.scenarios
    ]
    text = "<p>A scenario passes if the weights equal those of a run without a failure, too.</p>"
    return text + _table(("Scenario", "Recovery", "Expected", "Happened", "Passed"), rows)


def _published(report: Report) -> str:
    text = (
        "<p>Figures of other systems’ own reports, on other machines and models. No ratio is "
        "formed with them.</p>"
    )
    kinds = {"same": "ok", "other": "half", "not measurable": "no"}
    rows = [
        (
            reference.quantity,
            html.escape(reference.published),
            html.escape(ours) or "–",
            f"{_chip(kinds[reference.same], reference.same)} · {reference.why}",
        )
        for reference, ours in report.references
    ]
    names = ("Quantity", "Published elsewhere", "Measured here", "Same thing?")
    return text + _table(names, rows, hatched=1)


def _recommendations(report: Report) -> str:
    rows = [
        (
            each.question,
            f"<code>{html.escape(str(each.setting))}</code>",
            html.escape(str(each.reason)),
            _link(report, each.figure),
        )
        for each in report.recommendations
    ]
    return _table(("Question", "Set", "Because", "Figure"), rows)


def _strengths(report: Report) -> str:
    panels = "".join(
        f'<div class="panel"><h3>{heading}</h3><ul>'
        + "".join(f"<li>{html.escape(str(text))} {_link(report, name)}" for text, name in said)
        + "</ul></div>"
        for heading, said in (("Strengths", report.strengths), ("Limits", report.limits))
    )
    return f'<div class="two">{panels}</div>'


def _readiness(report: Report) -> str:
    rows = [
        (
            aspect.name,
            _chip(_CLASSES[aspect.status], f"{SIGNS[aspect.status]} {aspect.status}"),
            f"<code>{aspect.test}</code>",
        )
        for aspect in report.aspects
    ]
    return _table(("Aspect", "Status", "Shown by"), rows)


def _chip(kind: str, text: str) -> str:
    return f'<span class="{kind}">{text}</span>'


def _link(report: Report, figure: str) -> str:
    number = report.number_of(figure)
    if number is not None:
        return f'<a href="#fig-{figure}">Figure {number}</a>'
    return '<a href="#scenarios">Scenarios</a>' if figure == "scenarios" else ""


def _table(names: Sequence[str], rows: Iterable[Sequence[str]], hatched: int | None = None) -> str:
    def mark(place: int) -> str:
        return ' class="pub"' if place == hatched else ""

    head = "".join(f"<th{mark(place)}>{name}" for place, name in enumerate(names))
    body = "".join(
        "<tr>" + "".join(f"<td{mark(place)}>{cell}</td>" for place, cell in enumerate(row))
        for row in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</thead><tbody>{body}</tbody></table></div>'
    )


def _units(text: str) -> str:
    """Numbers are not torn from their units."""
    return _UNITS.sub("\\1\N{NO-BREAK SPACE}\\2", text)
