"""Markup: the pieces of HTML that panels are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

PHONE_LACKS: Final = "no-p"
"""The class of what a phone does not show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A panel, from top to bottom.

    Attributes:
        head: Its header, HTML.
        figure: Its chart.
        body: Content below that, HTML.
    """

    head: str = ""
    figure: Figure | None = None
    body: str = ""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table.

    Attributes:
        title: Its header.
        kind: Classes of its cells, such as `num` and `no-p`.
    """

    title: str
    kind: str = ""


def text(value: object) -> str:
    """Text that comes from a run, safe in HTML."""
    return escape(str(value))


def head(title: str, note: str = "", keys: str = "") -> str:
    """The header of a panel.

    Args:
        title: Its name.
        note: Note on it, HTML.
        keys: The keys of its chart with their current values, HTML.
    """
    note = f'<span class="dim">{note}</span>' if note else ""
    keys = f'<div class="keys">{keys}</div>' if keys else ""
    return f'<div class="hf hd"><h2>{title}</h2>{note}{keys}</div>'


def key(color: str, label: str, value: str = "", kind: str = "") -> str:
    """The key of a line or an area, with its current value.

    Args:
        color: Variable of the style sheet.
        label: Its name, HTML.
        value: Its newest value.
        kind: `sq` for an area, `dash` for a dashed line.
    """
    value = f" <b>{value}</b>" if value else ""
    return f'<span><i class="k {kind}" style="--c:var({color})"></i>{label}{value}</span>'


def status(color: str, icon: str, label: str) -> str:
    """A state: icon and word, in its color."""
    return f'<span class="st" style="--c:var({color})">{icon} {label}</span>'


def empty(title: str, when: str) -> Panel:
    """A panel without data, which says when they come."""
    return Panel(head=head(title), body=f'<p class="none">{when}</p>')


def table(columns: Sequence[TableColumn], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """A table; a row whose first cell begins with `*` is marked.

    Args:
        columns: From left to right.
        rows: Cells, HTML.
        kind: Classes of the table.
    """
    titles = "".join(f'<th class="{each.kind}">{each.title}</th>' for each in columns)
    lines = [f'<div class="hf"><table class="{kind}"><tr>{titles}</tr>']
    for row in rows:
        first, *rest = row
        is_marked = first.startswith("*")
        cells = "".join(
            f'<td class="{column.kind}">{cell}</td>'
            for column, cell in zip(columns, [first.removeprefix("*"), *rest], strict=True)
        )
        lines.append(f"<tr{' class=sel' * is_marked}>{cells}</tr>")
    return "".join([*lines, "</table></div>"])


def number(name: str, kind: str = "") -> str:
    """The number of a failure, in its red square."""
    wide = " wide" if len(name) > 2 else ""
    return f'<span class="no{wide} {kind}">{text(name)}</span>'
