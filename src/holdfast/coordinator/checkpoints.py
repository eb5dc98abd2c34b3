"""Checkpoints: performs the checkpoint actions of the coordinator, and logs their results."""

from __future__ import annotations

import contextlib
from typing import Self

from holdfast.checkpoint.commit import CommitFailed, Committed, commit, result_of
from holdfast.checkpoint.retention import (
    CheckpointCorrupt,
    CheckpointUnreadable,
    Retention,
    RetentionEvent,
    RetentionFailed,
)
from holdfast.checkpoint.store import CheckpointStore
from holdfast.core.actions import CommitCheckpoint
from holdfast.core.events import CheckpointCompleted, CheckpointFound
from holdfast.observe.lines import EventLog


class Checkpoints:
    """The checkpoints of one run. Retention works from `__enter__` to `__exit__`.

    Args:
        store: Where they are kept.
        attempt: This start of the run.
        keep: How many to keep besides that of the best evaluation.
        log: The run's log of events.
    """

    def __init__(self, store: CheckpointStore, attempt: str, keep: int, log: EventLog) -> None:
        self._store, self._attempt, self._log = store, attempt, log
        self._retention = Retention(store, keep, self._on_retention_event)

    def __enter__(self) -> Self:
        self._retention.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._retention.__exit__()

    def find_newest(self) -> CheckpointFound:
        """Find the newest readable checkpoint."""
        return CheckpointFound(self._store.newest())

    def remove_partial(self) -> None:
        """Delete what interrupted writes have left; an error of the storage is ignored."""
        with contextlib.suppress(OSError):  # the next resume tries again
            self._store.remove_partial()

    def delete_old(self) -> None:
        """Verify the newest checkpoints and delete older ones, in the background.

        Not while workers are about to restore: what they reject must not vanish before.
        """
        self._retention.request()

    def commit(self, request: CommitCheckpoint) -> CheckpointCompleted:
        """Commit a checkpoint, if every part of it could be written.

        Raises:
            ProtocolError: A worker has sent something that is no part.
        """
        outcome = commit(self._store, request, self._attempt)
        match outcome:
            case Committed(step=step, location=location, is_new=is_new):
                if is_new:
                    self._log.event("checkpoint-committed", step=step, directory=location)
                self.delete_old()
            case CommitFailed(step=step, reason=reason):
                self._log.event("checkpoint-failed", step=step, reason=reason)
        return CheckpointCompleted(result_of(request, outcome))

    def _on_retention_event(self, event: RetentionEvent) -> None:
        match event:
            case CheckpointCorrupt():
                self._log.event("checkpoint-corrupt", **_fields(event))
            case CheckpointUnreadable():
                self._log.event("checkpoint-unreadable", **_fields(event))
            case RetentionFailed():
                self._log.event("retention-failed", reason=event.reason)


def _fields(event: CheckpointCorrupt | CheckpointUnreadable) -> dict[str, object]:
    return {
        "step": event.step,
        "directory": event.location,
        "file": event.file,
        "reason": event.reason,
    }
