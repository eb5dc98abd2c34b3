"""Transfers in the terminal: bars where there is one, plain lines in a pipe."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TransferSpeedColumn,
)


class TransferView:
    """Shows on standard error how far transfers are."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bars: dict[str, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def report(self, what: str, done_bytes: int, size_bytes: int) -> None:
        """Show that so much of a transfer is done.

        Args:
            what: The transfer in words; the same each time.
            done_bytes: Size of the part that is done.
            size_bytes: Its size.
        """
        if what not in self._bars:
            self._bars[what] = self._progress.add_task(what, total=size_bytes)
            if not self._console.is_terminal:
                self._console.print(
                    f"{what}, {size_bytes} bytes", style=None, markup=False, soft_wrap=True
                )
        self._progress.update(self._bars[what], completed=done_bytes)
