"""Page: the report's Markdown as one HTML file that loads nothing from anywhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from markdown_it import MarkdownIt

from holdfast_bench.report import drawing, markdown
from holdfast_bench.report.report import Report
from holdfast_bench.report.theme import DARK, LIGHT, Tokens, font_files, style

_HERE: Final = Path(__file__).parent
_SANS: Final = '"Holdfast Sans","Source Sans 3",system-ui,sans-serif'
_MONO: Final = '"Holdfast Mono","Source Code Pro",ui-monospace,monospace'
_UNITS: Final = re.compile(r"(\d) (%|s|ms|h|×|GiB|GB|MB|KB/s|Gbit/s)(?!\w)")
_CHIPS: Final = {"✓": "ok", "same": "ok", "●": "half", "other": "half", "✕": "no", "– ": "no"}
"""The class of a table's cell by how it begins."""


def write(report: Report, folder: Path) -> Path:
    """Write `report.html`; returns its path.

    Raises:
        OSError: It cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.html"
    path.write_text("\n".join(_page(report)), encoding="utf-8")
    return path


def _page(report: Report) -> Iterator[str]:
    sections = list(_sections(report))
    yield '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width,initial-scale=1">'
    yield f"<title>holdfast · benchmark report</title>\n<style>{_styles()}</style>"
    yield '<div class="page"><nav aria-label="Contents">'
    yield f'<div class="mark">{_file("mark.svg")}holdfast</div><ol>'
    yield "".join(f'<li><a href="#{key}">{heading}</a>' for key, heading, _ in sections)
    yield "</ol></nav><main>"
    when = f"{max(each.started for each in report.conditions):%d %B %Y, %H:%M} UTC"
    yield f"<header id=results><h1>Benchmark report</h1><p>newest result of {when}</p>"
    yield f"{_html(markdown.results(report))}</header>"
    for key, heading, body in sections:
        yield f'<section id="{key}"><h2>{heading}</h2>{body}</section>'
    yield "<footer>Every number of a sentence is in the data of the figure that it cites; a test"
    yield "compares them. This file loads nothing from a network.</footer></main></div></html>\n"


def _sections(report: Report) -> Iterator[tuple[str, str, str]]:
    """The key, the heading and the content of each section."""
    with style(LIGHT):
        pictures = {
            "\n".join(markdown.picture(figure.name, figure.question)): drawing.svg(
                figure.draw(LIGHT), figure.name, figure.question
            )
            for figure in report.figures
        }
    shown = "\n".join(markdown.picture("architecture", "The parts of a run", "svg"))
    pictures[shown] = markdown.architecture()
    for section in markdown.sections(report):
        body = _html(section.lines)
        for shown, drawn in pictures.items():
            body = body.replace(shown, f'<div class="fig">{drawn}</div>')
        yield section.key, section.heading, body


def _html(lines: Iterator[str] | tuple[str, ...]) -> str:
    """Markdown as HTML: a panel below each small heading, links to figures, colored cells."""
    body: str = MarkdownIt("commonmark", {"html": True}).enable("table").render("\n".join(lines))
    body = re.sub(r"<h3>.*?(?=<h3>|\Z)", r"<figure>\g<0></figure>", body, flags=re.DOTALL)
    body = re.sub(r"<table>.*?</table>", r'<div class="scroll">\g<0></div>', body, flags=re.DOTALL)
    body = re.sub(r"<h3>(?=(\d+) ·)", r'<h3 id="fig-\1">', body)
    body = re.sub(r"\(figure (\d+)\)", r'<a href="#fig-\1">Figure \1</a>', body)
    for start, kind in _CHIPS.items():
        body = body.replace(f"<td>{start}", f'<td class="{kind}">{start}')
    return _UNITS.sub("\\1\N{NO-BREAK SPACE}\\2", body)


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
    return faces + roots + _file("page.css")


def _variables(tokens: Tokens) -> str:
    return "".join(f"--{name}:{color};" for name, color in tokens.items())


def _file(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
