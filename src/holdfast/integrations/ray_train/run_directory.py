"""The run directory of rank 0: where it is, and what it gets from the checkpoint of Ray Train."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

import ray.train
from pyarrow.fs import LocalFileSystem
from ray.train import Checkpoint

from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.transfer import newest_described, pieces, receive
from holdfast.errors import CheckpointError
from holdfast.job import JOB_FILE
from holdfast.rundir.run_directory import state_dir

FOLDER: Final = "holdfast"
"""The run directory, in the folder that Ray Train keeps of a run."""
_ATTEMPT: Final = "f"
"""Names the draft: nothing else writes to the directory yet."""


def run_directory(key: str) -> Path:
    """The run directory, the same for each attempt where that is possible.

    It is next to the checkpoints of Ray Train if those are in a file system, which is the same for
    all hosts; else on this host.

    Args:
        key: Key of the run, for a directory on this host.
    """
    context = ray.train.get_context()
    storage = context.get_storage()
    if isinstance(storage.storage_filesystem, LocalFileSystem):
        return Path(storage.experiment_fs_path) / FOLDER
    return state_dir() / "ray-train" / f"{context.get_experiment_name()}-{key}"


def bring(checkpoint: Checkpoint, run_dir: Path) -> None:
    """Have a run directory that is at least as new as the checkpoint that Ray Train has.

    Args:
        checkpoint: Checkpoint that Ray Train has.
        run_dir: The run's directory, which may not exist yet.

    Raises:
        CheckpointError: The checkpoint of Ray Train is damaged, or is not one of holdfast.
        OSError: The disk is full, say.
    """
    with checkpoint.as_directory() as folder:
        theirs = CheckpointStore.of_run(Path(folder))
        ours = CheckpointStore.of_run(run_dir)
        wanted = newest_described(theirs) if (Path(folder) / JOB_FILE).exists() else None
        if wanted is None:
            raise CheckpointError(
                f"{checkpoint.path} is no checkpoint of holdfast; give RunConfig another name"
            )
        own = None
        with suppress(FileNotFoundError):
            own = ours.newest()
        if own is None or own.step < wanted.step:
            (run_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
            receive(ours, _ATTEMPT, pieces(theirs, wanted), wanted)
        if not (run_dir / JOB_FILE).exists():  # last: with it, there is a run to resume
            shutil.copyfile(Path(folder) / JOB_FILE, run_dir / JOB_FILE)
