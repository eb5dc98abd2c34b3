"""A run in the terminal: a live line where there is one, plain lines in a pipe."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from holdfast.arena.memory import Arena, Phase, Word
from holdfast.arena.worker_status import WorkerStatus
from holdfast.observe.tee import Tee

PLAIN_INTERVAL_S: Final = 5.0
PACE_WINDOW_S: Final = 30.0
"""How far back the speed is measured: long enough to be steady, short enough to be news."""

_NAMED: Final = {Phase.EVALUATE: "evaluating", Phase.CHECKPOINT: "saving a checkpoint"}


class PlainConsole(Console):
    """Standard error; once nobody reads it, the run goes on without a word."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        with suppress(OSError), open(os.devnull, "wb") as nobody:  # noqa: PTH123  # a device
            os.dup2(nobody.fileno(), self.file.fileno())  # else the interpreter fails as it ends


class Pace:
    """How fast a run goes, evaluations and checkpoints included."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int]] = deque()

    def note(self, now: float, step: int, samples: int) -> None:
        """Take in how many steps and samples have been committed at `now`, seconds."""
        if self._seen and (step < self._seen[-1][1] or samples < self._seen[-1][2]):
            self._seen.clear()  # back to a checkpoint, or the worker that counted most is lost
        if not self._seen or step != self._seen[-1][1]:
            self._seen.append((now, step, samples))
        while len(self._seen) > 2 and now - self._seen[0][0] > PACE_WINDOW_S:
            self._seen.popleft()

    def __call__(self) -> tuple[float, float] | None:
        """Steps and samples a second; None until two steps have been seen."""
        if len(self._seen) < 2:
            return None
        (start, step, samples), (end, last_step, last_samples) = self._seen[0], self._seen[-1]
        return (last_step - step) / (end - start), (last_samples - samples) / (end - start)


class RunView:
    """Shows the progress of a run on standard error.

    Args:
        tee: What workers print, to be shown too.
        console: Where to.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        tee: Tee,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tee, self._clock = tee, clock
        self._console = console or PlainConsole(stderr=True)
        self._pace = Pace()
        self._bar: Progress | None = None
        if self._console.is_terminal:
            columns = BarColumn(bar_width=20), TextColumn("{task.description}", markup=False)
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task("", total=None)
        self._printed_at, self._printed = clock(), ""

    def watch(self, arena: Arena) -> None:
        """Show what the furthest member has committed, and what the workers have printed."""
        for line in self._tee.lines():
            self._print(line)
        members = _members(arena)
        rank = max(members, key=lambda member: arena[member, Word.COMMITTED])
        now, step, total = self._clock(), arena[rank, Word.COMMITTED], arena[rank, Word.TOTAL_STEPS]
        if not total:
            return
        self._pace.note(now, step, max(arena[member, Word.SAMPLES] for member in members))
        facts = _facts(arena, rank, self._pace())
        if self._bar is not None:
            self._bar.update(self._task, total=total, completed=step, description=facts)
            self._bar.start()
        elif now - self._printed_at >= PLAIN_INTERVAL_S and facts != self._printed:
            self._printed_at, self._printed = now, facts
            self._print(facts)

    def tell(self, text: str) -> None:
        """Show some lines for good, above what is live."""
        with suppress(OSError):  # the terminal may have been closed
            self._print(text)

    def close(self) -> None:
        """Show the workers' last words and leave the terminal as it was."""
        with suppress(OSError):  # the terminal may have been closed
            for line in self._tee.last_lines():
                self._print(line)
            if self._bar is not None:
                self._bar.stop()

    def _print(self, line: str) -> None:
        self._console.print(Text.from_ansi(line), soft_wrap=True)


def _members(arena: Arena) -> list[int]:
    """The ranks in the newest generation; a lost worker's line stays as it was in an older one."""
    ranks = range(arena.world_size)
    newest = max(arena.entered(rank) for rank in ranks)
    return [rank for rank in ranks if arena.entered(rank) == newest]


def _facts(arena: Arena, rank: int, pace: tuple[float, float] | None) -> str:
    """How far a rank has come, how well, how fast, and what keeps some worker from training."""
    step, total = arena[rank, Word.COMMITTED], arena[rank, Word.TOTAL_STEPS]
    facts = [
        f"epoch {arena[rank, Word.EPOCH] + 1}/{arena[rank, Word.EPOCHS]}",
        f"step {step}/{total}",
        f"loss {WorkerStatus(arena, rank).loss:.4f}" if step else "",
    ]
    if pace is not None:
        steps_per_s, samples_per_s = pace
        left = timedelta(seconds=round((total - step) / steps_per_s))
        facts += [f"{samples_per_s:,.0f} samples/s", f"{left} left"]
    phases = {arena[member, Word.PHASE] for member in _members(arena)}
    facts += [name for phase, name in _NAMED.items() if phase in phases]
    return "  ".join(filter(None, facts))


def closing_table(rows: dict[str, object]) -> str:
    """The results of a run, a line each, wide enough for a hash and narrow enough for a screen."""
    width = max(len(name) for name in rows) + 2
    return "\n".join(f"{name:<{width}}{_cell(value)}" for name, value in rows.items())


def _cell(value: object) -> str:
    match value:
        case float():
            return f"{value:.6g}"
        case dict():
            return ", ".join(f"{name} {_cell(part)}" for name, part in value.items())
    return str(value)
