"""Screen: the panels put together for a terminal of any size, and the pages that fill it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, Literal

from rich.text import Text

from holdfast.record import history, recovery_reports
from holdfast.record.units import duration
from holdfast.record.views.run_at import RunAt
from holdfast.record.views.worker_rows import workers_of
from holdfast.views.terminal import blocks
from holdfast.views.terminal.lines import Look, shown, sides

Page = Literal["run", "events", "report"]
ROOMY: Final = 24
"""From this height on, there are free lines between the blocks."""
MIN_EVENTS: Final = 3
"""Lines of events that are kept free for many workers."""
KEYS: Final = "q quit  s stop and checkpoint  r recovery report  e events"
ENDED_KEYS: Final = "q quit  r recovery report  e events"
BACK: Final = "q quit  esc back"


def draw(
    run: RunAt, page: Page, size: tuple[int, int], look: Look, *, note: str = "", others: str = ""
) -> list[Text]:
    """A screen, line by line.

    Args:
        run: Run that it shows.
        page: Page of it.
        size: Size of the terminal, columns and lines.
        look: Characters that the terminal can show.
        note: Takes the place of the keys at the bottom; may be empty.
        others: Line about other runs; may be empty.
    """
    width = max(1, size[0])
    height = max(1, size[1])
    if page == "run":
        body = _run(run, width, height, look, others)
        keys = KEYS
        if run.has_ended:
            keys = ENDED_KEYS
    else:
        head = blocks.header(run, width, look)[:1]
        rest = _events(run) if page == "events" else _report(run, width)
        body = [*head, Text(), *rest]
        keys = BACK
    free = height - 1
    body = [*body[:free], *[Text()] * (free - len(body))]
    foot = sides(Text(note or keys, "bold" if note else "dim"), Text(_age(run), "dim"), width)
    return [shown(line, width, look) for line in [*body, foot]]


def _run(run: RunAt, width: int, height: int, look: Look, others: str) -> list[Text]:
    """All panels; what is free goes to the rows of workers and events."""

    def between(words: str = "") -> list[Text]:
        return [Text(words, "dim")] if height >= ROOMY else []

    workers = workers_of(run)
    head = blocks.header(run, width, look)
    figures = blocks.figures(run, width)
    band = blocks.band(run, width, look) or [Text()]
    step = blocks.step(run, width, look)
    gaps = 6 * len(between())
    titles = 2
    foot = 1
    fixed = len(head) + len(figures) + len(band) + len(step) + gaps + titles + foot
    free = max(2, height - fixed)
    rows = min(max(1, len(workers)), max(1, free - MIN_EVENTS))
    table = blocks.worker_table(workers, width, look, rows)
    hidden = f"      {len(workers) - rows} more; these are the worst" if len(workers) > rows else ""
    newest = blocks.events(run, width, free - rows)
    newest += [Text()] * (free - rows + 1 - len(newest))
    return [
        *head, *between(), *figures, *between(), *band, *between(), *table, *between(hidden),
        *step, *between(), *newest, *between(others),
    ]  # fmt: skip


def _events(run: RunAt) -> list[Text]:
    """The events, the newest first; those that fit are shown."""
    found = []
    for event in reversed(run.record.events):
        at = time.strftime("%H:%M:%S", time.localtime(event["time_unix_s"]))
        found.append(Text.assemble((at, "dim"), "  ", history.words(event)))
    return found or [Text("no event yet", "dim")]


def _report(run: RunAt, width: int) -> list[Text]:
    """The newest recovery report."""
    if not run.record.recoveries:
        return [Text("no recovery so far", "dim")]
    said = recovery_reports.text(run.record.recoveries[-1], run.record.path / "logs")
    return [Text(piece) for line in said.splitlines() for piece in _folded(line, width)]


def _folded(line: str, width: int) -> list[str]:
    return [line[at : at + width] for at in range(0, max(1, len(line)), width)]


def _age(run: RunAt) -> str:
    """Age of the newest of what is shown."""
    if run.has_ended:
        return f"run {run.state.name}"
    newest = [event["time_unix_s"] for event in run.record.events[-1:]]
    newest += run.record.steps.columns["at"][-1:]
    return f"updated {duration(run.now - max(newest))} ago" if newest else ""


def others_in_words(names: Sequence[str]) -> str:
    """Line about other runs that are not over; empty without any."""
    if not names:
        return ""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"also running: {', '.join(names[:3])}{more}"
