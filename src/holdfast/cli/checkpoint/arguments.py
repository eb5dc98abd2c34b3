"""Arguments that several commands of the group share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.job import load
from holdfast.job.settings import CheckpointSettings

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
