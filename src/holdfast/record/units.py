"""Units: numbers for people. SI, a space before the unit, three digits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import isfinite
from typing import Final

MISSING: Final = "–"
NBSP: Final = "\N{NO-BREAK SPACE}"
_MINUTE = 60
_HOUR = 3600
_DAY = 86400
_BYTES: Final = ("B", "kB", "MB", "GB", "TB")


def digits(value: float | None) -> str:
    """A number with three significant digits; whole from a thousand on."""
    if value is None or not isfinite(value):
        return MISSING
    if abs(value) >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:#.3g}".removesuffix(".")


def percent(share: float | None) -> str:
    """A share, such as `41.0 %`."""
    if share is None or not isfinite(share):
        return MISSING
    return f"{100 * share:.1f}{NBSP}%" if share else f"0{NBSP}%"


def duration(seconds: float | None) -> str:
    """A time in two units at most: `9 ms`, `2.31 s`, `38 s`, `8 min 20 s`, `1 h 04 min`."""
    if seconds is None or not isfinite(seconds):
        return MISSING
    seconds = max(0.0, seconds)
    if seconds < 0.0995:
        return f"{1000 * seconds:.0f}{NBSP}ms" if seconds else f"0{NBSP}s"
    if seconds < 9.95:
        return f"{seconds:.2f}{NBSP}s"
    whole = round(seconds)
    for unit, name, smaller, lesser in (
        (_DAY, "d", _HOUR, "h"), (_HOUR, "h", _MINUTE, "min"), (_MINUTE, "min", 1, "s"),
    ):  # fmt: skip
        if whole >= unit:
            rest = whole % unit // smaller
            more = f" {rest:02} {lesser}" if rest else ""
            return f"{whole // unit} {name}{more}".replace(" ", NBSP)
    return f"{whole}{NBSP}s"


def size(count: float | None) -> str:
    """Bytes, such as `89.9 MB`."""
    if count is None:
        return MISSING
    for unit in _BYTES:
        if count < 999.5 or unit == _BYTES[-1]:
            break
        count /= 1000
    return f"{digits(count) if unit != 'B' else round(count)}{NBSP}{unit}"


def count(number: int, noun: str) -> str:
    """`0 steps`, `1 step`, `1,846 steps`."""
    return f"{number:,}{NBSP}{noun}{'' if number == 1 else 's'}"


def clock(at: float, now: float) -> str:
    """A moment: `today 14:02`, `yesterday 18:31`, `2026-01-02 15:04`."""
    then = time.localtime(at)
    hour = time.strftime("%H:%M", then)
    for back, word in ((0, "today"), (_DAY, "yesterday")):
        if time.localtime(now - back)[:3] == then[:3]:
            return f"{word} {hour}"
    return f"{time.strftime('%Y-%m-%d', then)} {hour}"


def named(ranks: Sequence[int]) -> str:
    """`rank 1`, `ranks 0, 2 and 3`."""
    *most, last = map(str, ranks)
    return f"ranks {', '.join(most)} and {last}" if most else f"rank {last}"
