"""Checkpoints: what the coordinator does on the disk once all have written their parts."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from holdfast.checkpoint import manifest, parts
from holdfast.checkpoint.manifest import Header, Manifest, PartFile
from holdfast.coordinator.retention import Retention
from holdfast.core.actions import CommitCheckpoint
from holdfast.core.protocol import CheckpointResult, Part, StoredCheckpoint
from holdfast.errors import CheckpointError, ProtocolError
from holdfast.observe.lines import EventLog


class CheckpointStore:
    """Those of one run; old ones are deleted in the background from `__enter__` to `__exit__`.

    Args:
        root: Their directory.
        attempt: This start of the run.
        keep: How many to keep.
        log: The run's log of events.
    """

    def __init__(self, root: Path, attempt: str, keep: int, log: EventLog) -> None:
        self._root, self._attempt, self._log = root, attempt, log
        self._retention = Retention(root, keep, log)

    def __enter__(self) -> Self:
        self._retention.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._retention.__exit__()

    def find_newest(self) -> StoredCheckpoint | None:
        """The newest checkpoint whose manifest can be read; None if there is none."""
        for directory in manifest.committed(self._root):
            with contextlib.suppress(CheckpointError):
                return StoredCheckpoint(step=manifest.read(directory).step, name=directory.name)
        return None

    def sweep(self) -> None:
        """Remove what was left half written."""
        with contextlib.suppress(OSError):  # it is tried again
            manifest.sweep(self._root)

    def delete_old(self) -> None:
        """Verify the newest and delete older ones, in the background.

        Workers must not be about to restore: they are to see damage for themselves.
        """
        self._retention.request()

    def commit(self, wish: CommitCheckpoint) -> CheckpointResult:
        """Make the parts that lie ready a checkpoint, if each could be written.

        Raises:
            ProtocolError: A worker has sent something that is no part.
        """
        final = self._root / manifest.directory_name(wish.step)
        failed = [part.error for part in wish.parts.values() if part.error]
        found = None if failed else _manifest(wish.parts.values())
        if not _is_there(final, found):
            if found is None:
                return self._given_up(wish, failed[0])
            attempt = manifest.attempt_in(wish.generation, self._attempt)
            try:
                manifest.commit(self._root, found, attempt)
            except OSError as error:
                return self._given_up(wish, str(error))
            self._log.event("checkpoint-committed", step=wish.step, directory=str(final))
        self.delete_old()
        return _verdict(wish)

    def _given_up(self, wish: CommitCheckpoint, error: str) -> CheckpointResult:
        """The failed attempt is removed, so that it does not also hold the space it lacked."""
        attempt = manifest.attempt_in(wish.generation, self._attempt)
        with contextlib.suppress(OSError):
            shutil.rmtree(self._root / manifest.temporary_name(wish.step, attempt))
        self._log.event("checkpoint-failed", step=wish.step, reason=error)
        return _verdict(wish, error)


def _is_there(directory: Path, wished: Manifest | None) -> bool:
    """Whether a coordinator, or a generation, that did not live to tell has committed it. One of
    the same step may also hold another state.
    """
    if wished is None or not directory.is_dir():
        return directory.is_dir()
    with contextlib.suppress(CheckpointError):
        content = {"root", "state", "user_state"}
        there = manifest.read(directory).model_dump_json(include=content)
        return there == wished.model_dump_json(include=content)
    return False


def _verdict(wish: CommitCheckpoint, error: str = "") -> CheckpointResult:
    return CheckpointResult(
        generation=wish.generation, number=wish.number, step=wish.step, error=error
    )


def _manifest(written: Iterable[Part]) -> Manifest:
    """The record of parts in the order of their ranks; the first brings what is said of all."""
    contents = [part.content for part in written]
    try:
        header = Header.model_validate(contents[0]["header"])
        files = [PartFile.model_validate(content["file"]) for content in contents]
    except (ValidationError, KeyError) as error:
        raise ProtocolError(f"a worker sent no part of a checkpoint: {error}") from None
    return Manifest(
        **header.model_dump(),
        root=parts.root([digest for file in files for digest in file.digests]),
        parts=tuple(files),
    )
