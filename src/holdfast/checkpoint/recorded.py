"""Recorded checkpoints: what a run's record says was committed, compared with what is there.

A storage that is unmounted, moved or not yet mounted looks like one without checkpoints: its
directory is absent, or is the empty one below the mount point. Only the record tells the two
apart. A run whose record names no checkpoint may begin from nothing; any other waits.

A checkpoint in quarantine, and one whose deletion or replacement was interrupted, is accounted for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.checkpoint import names
from holdfast.checkpoint.store import CheckpointStore
from holdfast.core.protocol import StoredCheckpoint
from holdfast.errors import CheckpointError

LIST_TIMEOUT_S: Final = 30.0
"""Time that a storage may be out of reach when a checkpoint of it is needed."""
PAUSE_S: Final = 0.5
"""Interval of looks at it meanwhile."""

Record = Callable[[], Iterable[Mapping[str, Any]]]
"""Reads the events of a run, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingCheckpoint:
    """The newest checkpoint that the record names and the storage lacks.

    Attributes:
        step: Its step.
        committed_unix_s: Time of its commit.
        newest_step: The newest one that is there; None if there is none.
    """

    step: int
    committed_unix_s: float
    newest_step: int | None

    @property
    def when(self) -> str:
        """Time of its commit, for people."""
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.committed_unix_s))


def missing_checkpoint(
    store: CheckpointStore, events: Iterable[Mapping[str, Any]]
) -> MissingCheckpoint | None:
    """The newest checkpoint that a store lacks, if it is newer than all that are there.

    Args:
        store: The checkpoints of a run on this host.
        events: The run's record, oldest first.

    Raises:
        OSError: The storage cannot be reached.
    """
    steps = committed_steps(events, Path(store.location("")))
    present = store.storage.names()
    newest = max((names.step_of(name) for name in present if names.is_checkpoint(name)), default=-1)
    missing = [step for step in steps if step > newest and not _is_accounted_for(step, present)]
    if not missing:
        return None
    step = max(missing)
    return MissingCheckpoint(
        step=step,
        committed_unix_s=steps[step],
        newest_step=None if newest < 0 else newest,
    )


def committed_steps(events: Iterable[Mapping[str, Any]], folder: Path) -> dict[int, float]:
    """The checkpoints that a run's record says are in a folder, and when each was committed.

    Args:
        events: Events of the run, oldest first.
        folder: Folder of the run's checkpoints on this host.

    Returns:
        Unix times by step. What the record says was quarantined is left out, and so is what was
        newer than the checkpoint that the run was resumed or restored from. Retention never deletes
        the newest.
    """
    # The record is replayed: what was committed, minus what was taken out of use since.
    steps = dict[int, float]()
    for event in events:
        match event:
            case {
                "event": "checkpoint-committed" | "checkpoint-collected" | "checkpoint-fetched",
                "step": int(step),
                "time_unix_s": float() | int() as at,
            }:
                if _is_here(event, folder):
                    steps[step] = at
            case {"event": "checkpoint-corrupt", "step": int(step)}:
                if _is_here(event, folder):
                    steps.pop(step, None)
            case {"event": "checkpoint-rejected", "directory": str(directory)}:
                name = Path(directory).name
                if _is_here(event, folder) and names.is_checkpoint(name):
                    steps.pop(names.step_of(name), None)
            case {
                "event": "generation-started" | "run-restored" | "older-accepted",
                "step": int(step),
            }:
                # The run continued from this step, so newer checkpoints are of a past that is void.
                steps = {each: at for each, at in steps.items() if each <= step}
    return steps


def find_newest(
    store: CheckpointStore,
    record: Record,
    on_wait: Callable[[str], None],
    prepare: Callable[[], None] = lambda: None,
) -> tuple[list[str], StoredCheckpoint | None]:
    """The checkpoints of a run, newest first, and the newest whose manifest verifies.

    A storage that is out of reach, or lacks what the record names, is looked at again and again:
    a run that took its checkpoints for gone would begin from an older one, or from nothing.

    Args:
        store: The checkpoints of a run on this host.
        record: The run's.
        on_wait: Called once, with the reason, if the storage must be looked at again.
        prepare: Called before each look.

    Raises:
        CheckpointError: It stays so for `LIST_TIMEOUT_S`.
    """
    # A mount may come late: the last reason is reported if none of the looks succeeds.
    reason = ""
    skipping: tuple[list[str], StoredCheckpoint | None] | None = None
    for is_last in looks():
        try:
            prepare()
            committed = store.committed()
            missing = missing_checkpoint(store, record())
            if missing is None:
                found = (committed, store.newest())
                # A file that is being put back is missing for a moment: a newer checkpoint is
                # skipped only if two looks agree that it is damaged.
                if is_last or found == skipping or _is_newest(*found):
                    return found
                skipping = found
                continue
            why = (
                f"{store.location(names.checkpoint_name(missing.step))} is not there; it was "
                f"committed at {missing.when}"
            )
        except OSError as error:
            why = f"{error.filename or store.location('')} cannot be read: {error.strerror}"
        if not reason:
            on_wait(why)
        reason = why
    raise CheckpointError(
        f"{reason}. That did not change in {LIST_TIMEOUT_S:.0f} s: mount the storage, or bring the "
        "checkpoint back, then resume the run. If it is lost, resume with --accept-older "
        "(accept_older=True in Python), or let a host that joins use another --run"
    )


def _is_newest(committed: list[str], found: StoredCheckpoint | None) -> bool:
    """True if no newer checkpoint is skipped."""
    return not committed or (found is not None and found.name == committed[0])


def looks() -> Iterator[bool]:
    """Looks at a storage until `LIST_TIMEOUT_S` have passed, with pauses; True for the last one."""
    deadline = time.monotonic() + LIST_TIMEOUT_S
    while time.monotonic() < deadline:
        yield False
        time.sleep(PAUSE_S)
    yield True


def _is_here(event: Mapping[str, Any], folder: Path) -> bool:
    """True if an event is about this host. In a run on several hosts it may be about another one,
    whose directory may have the same name; that of a run on one host may have been moved.
    """
    if event.get("shipped") is True:
        return False
    directory = event.get("directory")
    if "host" not in event or not isinstance(directory, str):
        return True
    return os.path.realpath(Path(directory).parent) == os.path.realpath(folder)


def _is_accounted_for(step: int, present: Iterable[str]) -> bool:
    """True if a checkpoint is in quarantine, or its deletion or replacement was interrupted."""
    name = names.checkpoint_name(step)
    interrupted = {names.deleted_name(name), names.replaced_name(name)}
    return any(each in interrupted or each.startswith(f"{name}.rejected-") for each in present)
