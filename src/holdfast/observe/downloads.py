"""Downloads in the terminal: bars where there is one, plain lines in a pipe."""

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

from holdfast.data.published import PublishedFile


class DownloadView:
    """Shows on standard error how far files have come."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bars: dict[PublishedFile, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description}"),
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

    def report(self, file: PublishedFile, size_bytes: int) -> None:
        """Show that so much of `file` has come."""
        if file not in self._bars:
            self._bars[file] = self._progress.add_task(file.name, total=file.size_bytes)
            if not self._console.is_terminal:
                self._console.print(f"downloading {file.name}, {file.size_bytes} bytes", style=None)
        self._progress.update(self._bars[file], completed=size_bytes)
