"""Reading: which run or checkpoint a command is given, and what it shows of a slow storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from holdfast.errors import CheckpointError
from holdfast.job import load
from holdfast.job.settings import CheckpointSettings


@contextmanager
def reachable(path: Path) -> Iterator[None]:
    """Turn an error of the storage at `path` into a message.

    Raises:
        CheckpointError: It cannot be reached, or not written to.
    """
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{error.filename or path}: {error.strerror or error}; see who owns it, and its disk"
        ) from None


@contextmanager
def reading(what: str, size_bytes: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error while something is read, where that is a terminal.

    Args:
        what: Name of what is read.
        size_bytes: Size of that; None if it is not known.

    Yields:
        A function to call with the bytes that were read since the last call.
    """
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task(what, total=size_bytes)
        yield lambda count: progress.advance(task, count)


RunOrCheckpoint = Annotated[
    Path,
    typer.Argument(
        metavar="RUN|CHECKPOINT",
        help="Directory of a checkpoint, or of a run, whose newest one is taken.",
    ),
]


def settings_of(run: Path) -> CheckpointSettings:
    """Checkpoint settings of the job of a run.

    Raises:
        JobError: There is no job that this version can read.
    """
    return load.of_run(run).checkpoint
