"""A run from a backup: its directory is made before it is resumed."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from holdfast.errors import JobError
from holdfast.rundir.run_directory import EVENTS
from holdfast.sinks.backup.restore import restore


def fetch_run(url: str, run_dir: Path | None) -> Path:
    """Make a run directory of a backup, and say where it is.

    Args:
        url: The backup.
        run_dir: The directory; None for a new one in `runs/`.

    Raises:
        JobError: There is no such backup, or the directory is not empty.
        CheckpointError: No checkpoint in it is whole.
    """
    source = Path(url.removeprefix("file://"))
    if (source / EVENTS).is_file():  # in a backup it is a folder
        raise JobError(
            f"{url} is a run directory, not a backup; continue its run with --run {source} "
            "--resume, without --from"
        )
    path = restore(url, run_dir, os.environ, partial(print, file=sys.stderr))
    print(f"the run is in {path}", file=sys.stderr)
    return path
