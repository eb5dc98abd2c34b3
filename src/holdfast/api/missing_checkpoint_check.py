"""Missing checkpoint check: refuses to resume a run whose newest recorded checkpoint is gone.

A checkpoint vanishes if someone deletes it, if its storage is not mounted, or if its directory is
replaced by an older copy. To resume from an older one then would silently repeat work, or undo what
was meant to last. Damage is another matter: the run resumes by itself.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.checkpoint import names
from holdfast.checkpoint.recorded import missing_checkpoint
from holdfast.checkpoint.store import CheckpointStore
from holdfast.errors import JobError
from holdfast.rundir import json_lines
from holdfast.rundir.run_directory import EVENTS, log_event


def check_newest(run_dir: Path) -> None:
    """Check, before a run is resumed, that its directory still has the newest checkpoint.

    Raises:
        JobError: It has an older one, or none, or cannot be read.
    """
    store = CheckpointStore.of_run(run_dir)
    try:
        missing = missing_checkpoint(store, json_lines.read(run_dir / EVENTS))
    except OSError as error:
        raise _unreadable(error, store) from error
    if missing is None:
        return
    if missing.newest_step is None:
        now = "it has none now"
        otherwise = "begin from nothing"
    else:
        now = f"its newest one is of step {missing.newest_step} now"
        otherwise = "resume from that"
    raise JobError(
        f"{run_dir} has lost the checkpoint of step {missing.step}, which was committed at "
        f"{missing.when}; {now}. Its storage is not mounted, its directory was replaced by an "
        "older copy, or the checkpoint was deleted. Bring it back to "
        f"{store.location(names.checkpoint_name(missing.step))}, or {otherwise}: --accept-older "
        "(accept_older=True in Python)"
    )


def accept_older(run_dir: Path) -> None:
    """Note in the record of a run that it is resumed from what its directory has now.

    Raises:
        JobError: The directory cannot be read.
    """
    store = CheckpointStore.of_run(run_dir)
    try:
        committed = store.committed()
    except OSError as error:
        raise _unreadable(error, store) from error
    step = names.step_of(committed[0]) if committed else 0
    log_event(run_dir, "older-accepted", step=step)


def _unreadable(error: OSError, store: CheckpointStore) -> JobError:
    return JobError(
        f"{error.filename or store.location('')} cannot be read: {error.strerror or error}; make "
        "the storage readable, then resume the run"
    )
