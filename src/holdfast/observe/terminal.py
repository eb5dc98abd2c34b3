"""A run in the terminal: a live line where there is one, plain lines in a pipe."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from holdfast.arena.memory import Arena, Word

PLAIN_INTERVAL_S: Final = 5.0


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Whoever read has gone; the run goes on without a word."""
        self.quiet = True


class RunView:
    """Shows the progress of a run on standard error.

    Args:
        epochs: Epochs of the run, to name the current one.
    """

    def __init__(self, epochs: int) -> None:
        self._console = _Console(stderr=True)
        self._epochs = epochs
        self._bar: Progress | None = None
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
                BarColumn(),
                TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
                TextColumn("loss {task.fields[loss]:.4f}"),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
            )
            self._task = self._bar.add_task("", total=None, visible=False)
        self._printed_at, self._printed_step = time.monotonic(), -1

    def watch(self, arena: Arena) -> None:
        """Show what rank 0 has committed."""
        step, total = arena[0, Word.COMMITTED], arena[0, Word.TOTAL_STEPS]
        if not total:
            return
        epoch, loss = arena[0, Word.EPOCH] + 1, arena.loss(0)
        if self._bar is not None:
            self._bar.start()
            self._bar.update(
                self._task,
                total=total,
                completed=step,
                visible=True,
                epoch=epoch,
                epochs=self._epochs,
                loss=loss,
            )
        elif time.monotonic() - self._printed_at > PLAIN_INTERVAL_S and step != self._printed_step:
            self._printed_at, self._printed_step = time.monotonic(), step
            self._console.print(
                f"epoch {epoch}/{self._epochs}  step {step}/{total}  loss {loss:.4f}", style=None
            )

    def close(self) -> None:
        if self._bar is not None:
            with suppress(OSError):  # the terminal may have been closed
                self._bar.stop()


def closing_table(rows: dict[str, object]) -> str:
    """The results of a run, a line each, wide enough for a hash and narrow enough for a screen."""
    width = max(len(name) for name in rows) + 2
    return "\n".join(
        f"{name:<{width}}{f'{value:.6g}' if isinstance(value, float) else value}"
        for name, value in rows.items()
    )
