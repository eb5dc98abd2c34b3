"""Commit: makes the parts that all workers have written a checkpoint.

Called for each `CommitCheckpoint` of the coordinator; its result goes back as an event. It touches
the storage only, so it can run in a thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import ValidationError

from holdfast.checkpoint import names, parts
from holdfast.checkpoint.manifest import Header, Manifest, PartFile
from holdfast.checkpoint.store import CheckpointStore
from holdfast.core.actions import CommitCheckpoint
from holdfast.core.protocol import CheckpointResult, Part
from holdfast.errors import CheckpointError, ProtocolError


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A checkpoint is durable.

    Attributes:
        step: Its step.
        location: Where it is.
        is_new: False if an earlier coordinator or generation has committed the same one.
    """

    step: int
    location: str
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFailed:
    """A checkpoint could not be committed; its draft is deleted."""

    step: int
    reason: str


def commit(
    store: CheckpointStore, request: CommitCheckpoint, attempt: str
) -> Committed | CommitFailed:
    """Commit the parts of all members, if each could be written.

    Args:
        store: The checkpoints of the run.
        request: The parts.
        attempt: This start of the run.

    Raises:
        ProtocolError: A worker has sent something that is no part.
    """
    step, name = request.step, names.checkpoint_name(request.step)
    attempt = names.attempt_in(request.generation, attempt)
    try:
        errors = [part.error for part in request.parts.values() if part.error]
        manifest = None if errors else _manifest(request.parts.values())
        if _is_committed(store, name, manifest):
            return Committed(step=step, location=store.location(name), is_new=False)
        if manifest is not None:
            store.publish(manifest, attempt)
            return Committed(step=step, location=store.location(name), is_new=True)
        reason = errors[0]
    except OSError as error:
        reason = str(error)
    with contextlib.suppress(OSError):  # the draft must not also hold the space that was missing
        store.discard(step, attempt)
    return CommitFailed(step=step, reason=reason)


def result_of(request: CommitCheckpoint, outcome: Committed | CommitFailed) -> CheckpointResult:
    """The result of a commit as the coordinator and its agents see it."""
    return CheckpointResult(
        generation=request.generation,
        number=request.number,
        step=request.step,
        error=outcome.reason if isinstance(outcome, CommitFailed) else "",
    )


def _is_committed(store: CheckpointStore, name: str, wanted: Manifest | None) -> bool:
    """Whether the checkpoint has been committed before, by a coordinator or a generation that did
    not live to report it. One of the same step may also hold another state.
    """
    if name not in store.committed():
        return False
    if wanted is None:
        return True
    with contextlib.suppress(CheckpointError):
        content = {"root", "state", "user_state"}
        stored = store.manifest(name).model_dump_json(include=content)
        return stored == wanted.model_dump_json(include=content)
    return False


def _manifest(written: Iterable[Part]) -> Manifest:
    """The manifest of parts in the order of their ranks; the first has the header."""
    contents = [part.content for part in written]
    try:
        header = Header.model_validate(contents[0]["header"])
        files = [PartFile.model_validate(content["file"]) for content in contents]
    except (ValidationError, KeyError) as error:
        raise ProtocolError(f"a worker sent an invalid part of a checkpoint: {error}") from None
    return Manifest(
        **header.model_dump(),
        root=parts.root([digest for file in files for digest in file.digests]),
        parts=tuple(files),
    )
