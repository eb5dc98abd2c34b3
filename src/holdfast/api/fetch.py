"""Fetch: what is brought here before a run: a published data set, or the run of a backup."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from holdfast.data.download import download
from holdfast.data.published import PUBLISHED, PublishedFile, directory
from holdfast.errors import JobError
from holdfast.job.data import Data
from holdfast.rundir.run_directory import EVENTS
from holdfast.sinks.backup.restore import restore
from holdfast.sinks.transfers import TransferView


def download_data(data: Data | None) -> None:
    """Download the data set of a job, unless it is there, and show the progress.

    Raises:
        JobError: It is not published, or the job says where it is.
    """
    name = None if data is None else data.name
    if name not in PUBLISHED:
        raise JobError(
            f"--download supports {', '.join(PUBLISHED)}, not data.name={name}; remove it"
        )
    if getattr(data, "path", None) is not None:
        raise JobError("--download and data.path exclude each other; remove one of them")
    with TransferView() as view:

        def report(file: PublishedFile, done_bytes: int) -> None:
            view.report(f"downloading {file.name}", done_bytes, file.size_bytes)

        download(name, PUBLISHED[name], directory(name), report)


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
