"""Lines: what the screen is made of: text of a given width, bars, and rows of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

ELLIPSIS: Final = "…"
_IN_ASCII: Final = str.maketrans("–…·×−●↻‖✓■✕○▲°", "-~.x-+!|*#x.!o")


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The characters that a terminal can show.

    Attributes:
        is_utf8: True if it shows more than ASCII.
        done, left: Characters for the progress of a run.
        full, empty: Characters for other bars.
    """

    is_utf8: bool
    done: str
    left: str
    full: str
    empty: str


UTF8: Final = Look(is_utf8=True, done="━", left="─", full="█", empty="░")
ASCII: Final = Look(is_utf8=False, done="=", left=".", full="#", empty=".")


def look_of(encoding: str) -> Look:
    """Look that the encoding of a terminal or a file can show."""
    return UTF8 if encoding.lower().startswith("utf") else ASCII


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table.

    Attributes:
        title: Its header.
        width: In cells.
        max_width: On a wide terminal, if a cell is that long.
        is_left: True if its cells are aligned to the left.
        gap: Free cells before it.
        importance: On a narrow terminal, columns with low ones are left out.
    """

    title: str
    width: int
    max_width: int = 0
    is_left: bool = False
    gap: int = 2
    importance: int = 0


def plain(text: str, look: Look) -> str:
    """A text as the terminal can show it, without control characters; of the same length."""
    found = "".join(each if each.isprintable() else " " for each in text)
    if look.is_utf8:
        return found
    return found.translate(_IN_ASCII).encode("ascii", "replace").decode()


def shown(line: Text, width: int, look: Look) -> Text:
    """A line as the terminal can show it, no longer than that."""
    found = line.copy()
    found.plain = plain(found.plain, UTF8)
    if cell_len(found.plain) > width:
        found.truncate(width, overflow="ellipsis")
    found.plain = plain(found.plain, look)
    return found


def sides(left: Text, right: Text, width: int) -> Text:
    """A line with one text at its left and one at its right; the left one is cut off if both do
    not fit.
    """
    free = width - cell_len(right.plain)
    line = left.copy()
    if cell_len(line.plain) > free - 1:
        line.truncate(max(0, free - 1), overflow="ellipsis")
    return line.append(" " * max(0, free - cell_len(line.plain))).append_text(right)


def progress(share: float, marks: Mapping[float, str], width: int, look: Look, style: str) -> Text:
    """The progress of a run, with the names of its failures where they were.

    Args:
        share: Part that is done, from 0 to 1.
        marks: Names by where they are, from 0 to 1; later ones cover those before.
        width: In cells.
        look: Characters that the terminal can show.
        style: Style of the part that is done.
    """
    done = round(min(1.0, share) * width)
    bar = Text(look.done * done, style).append(look.left * (width - done), "dim")
    for place, name in marks.items():
        at = min(int(place * width), width - len(name))
        if at >= 0:
            bar = Text.assemble(bar[:at], (name, "bold red"), bar[at + len(name) :])
    return bar


def meter(share: float, width: int, look: Look, style: str = "") -> Text:
    """Bar of a used part; more than all counts as all."""
    full = round(max(0.0, min(1.0, share)) * width)
    return Text(look.full * full, style).append(look.empty * (width - full), "dim")


def parts(shares: Sequence[tuple[str, float, str]], width: int, look: Look) -> Text:
    """A bar of several parts, each with its letter, by letter, share and style."""
    ends = [0]
    total = 0.0
    for _, share, _ in shares:
        total += share
        ends.append(round(min(1.0, total) * width))
    bar = Text()
    for (letter, _, style), (begin, end) in zip(shares, pairwise(ends), strict=True):
        if end == begin:
            continue
        rest = look.full if look.is_utf8 else letter
        bar.append(letter, f"{style} reverse").append(rest * (end - begin - 1), style)
    return bar


def fitted(columns: Sequence[Column], rows: Sequence[Sequence[Text]], width: int) -> list[Text]:
    """A table, its header first.

    Args:
        columns: From left to right.
        rows: Their cells.
        width: Width of the terminal; columns that do not fit are omitted, least important first.
    """
    kept = list(range(len(columns)))
    while len(kept) > 1 and sum(columns[each].width + columns[each].gap for each in kept) > width:
        kept.remove(min(kept, key=lambda each: columns[each].importance))
    chosen = [columns[each] for each in kept]
    free = width - sum(each.width + each.gap for each in chosen)
    for place, column in enumerate(chosen):
        longest = max((cell_len(row[kept[place]].plain) for row in rows), default=0)
        more = max(0, min(longest, column.max_width) - column.width)
        chosen[place] = replace(column, width=column.width + min(more, free))
        free -= min(more, free)
    titles = [Text(each.title, "dim") for each in chosen]
    cells = [[row[each] for each in kept] for row in rows]
    return [_row(chosen, each) for each in [titles, *cells]]


def _row(columns: Sequence[Column], cells: Sequence[Text]) -> Text:
    line = Text()
    for column, cell in zip(columns, cells, strict=True):
        text = cell.copy()
        if cell_len(text.plain) > column.width:
            text.truncate(column.width, overflow="ellipsis")
        free = " " * (column.width - cell_len(text.plain))
        line.append(" " * column.gap)
        line.append_text(text.append(free) if column.is_left else Text(free).append_text(text))
    return line


def cut(text: str, width: int) -> str:
    """A text of at most that many cells."""
    return text if cell_len(text) <= width else f"{set_cell_size(text, width - 1)}{ELLIPSIS}"
