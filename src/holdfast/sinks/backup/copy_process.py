"""The process that copies a run to a second store.

    python -m holdfast.sinks.backup.copy_process RUN_DIR PARENT

It writes its progress to standard output. Once its standard input ends, the run has ended: it
copies what is left, and exits with status 1 if the store refuses that.
"""

from __future__ import annotations

import os
import select
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from holdfast.checkpoint.remote.open import open_store
from holdfast.job.train_job import TrainJob
from holdfast.linux.lifeline import die_with_parent, leave_signals_to_parent
from holdfast.rundir.json_lines import EventLog
from holdfast.rundir.run_directory import EVENTS, RunDirectory
from holdfast.sinks.backup.run_copy import name_of
from holdfast.sinks.backup.uploader import BackupProgress, Uploader


def main(run_dir: Path, parent: int) -> bool:
    """Copy the run in a directory until it has ended; returns whether all of it is copied.

    Args:
        run_dir: The run's directory.
        parent: The process that this one ends with.
    """
    die_with_parent(parent)
    leave_signals_to_parent()
    with suppress(psutil.Error, OSError):  # not every kernel has priorities for disks
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
    job = RunDirectory.job_of(run_dir)
    assert isinstance(job, TrainJob)
    assert job.backup is not None, "the job wants no backup"
    objects = open_store(f"{job.backup.to.rstrip('/')}/{name_of(job.name, run_dir)}", os.environ)
    with EventLog(run_dir / EVENTS) as log:
        return Uploader(
            run_dir, job.code_reference, job.backup, objects, log, _tell, _await_end
        ).run()


def _tell(progress: BackupProgress) -> None:
    print(progress.line(), flush=True)


def _await_end(timeout_s: float) -> bool:
    """Wait for the end of standard input, to which nothing is written."""
    return bool(select.select([sys.stdin], [], [], timeout_s)[0])


if __name__ == "__main__":
    sys.exit(not main(Path(sys.argv[1]), int(sys.argv[2])))
