"""Commit: makes the parts that the workers of a host have written a checkpoint, in two phases.

Each host keeps whole checkpoints. It prepares a draft with a manifest, and publishes or discards
the draft once the coordinator knows that all hosts are prepared. So publishing needs no space, and
what one host publishes, the others have at least as a draft.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pydantic import ValidationError

from holdfast.checkpoint import names, parts
from holdfast.checkpoint.manifest import Header, Manifest, Origin, Parent, PartFile
from holdfast.checkpoint.store import CheckpointStore
from holdfast.core.code_version import CodeVersion
from holdfast.core.protocol import CheckpointResult, Draft, Part
from holdfast.errors import CheckpointError, ProtocolError


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A draft that awaits its end.

    Attributes:
        draft: What the coordinator needs to know of it.
        attempt: Who has written it; see `names.draft_name`.
        is_stored: Whether the same checkpoint was published before, by a generation that did not
            live to report it.
    """

    draft: Draft
    attempt: str
    is_stored: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """This host has the checkpoint, durably.

    Attributes:
        result: What its workers are told.
        location: Where it is.
        is_new: Whether it was not there before.
    """

    result: CheckpointResult
    location: str
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFailed:
    """This host does not have the checkpoint, and its draft is deleted.

    Attributes:
        result: What its workers are told, with the reason.
    """

    result: CheckpointResult


def prepare(
    store: CheckpointStore, written: Mapping[int, Part], attempt: str, code: CodeVersion
) -> Prepared:
    """Make the parts of a host a durable draft with a manifest.

    Args:
        store: The host's checkpoints.
        written: The parts of all its workers, by rank; the first has the header.
        attempt: The generation, in this start of the run.
        code: The user's code.

    Raises:
        ProtocolError: A worker has sent something that is no part.
    """
    first = next(iter(written.values()))
    draft, name = Draft(number=first.number, step=first.step), names.checkpoint_name(first.step)
    errors = [part.error for part in written.values() if part.error]
    try:
        manifest = None if errors else _manifest(store, written, code)
        stored = _stored(store, name, manifest)
        if stored is not None:
            root = replace(draft, root=stored.root)
            return Prepared(draft=root, attempt=attempt, is_stored=True)
        if manifest is not None:
            store.prepare(store.seal.signed(manifest), attempt)
            return Prepared(draft=replace(draft, root=manifest.root), attempt=attempt)
        error = errors[0]
    except OSError as failure:
        error = str(failure)
    _discard(store, first.step, attempt)  # it must not hold the space that was missing
    return Prepared(draft=replace(draft, error=error), attempt=attempt)


def complete(
    store: CheckpointStore, prepared: Prepared, result: CheckpointResult
) -> Committed | CommitFailed:
    """Publish a draft, or discard it if the checkpoint has failed."""
    draft, attempt = prepared.draft, prepared.attempt
    error = draft.error or result.error
    if not error:
        name = names.checkpoint_name(draft.step)
        try:
            if prepared.is_stored:
                _discard(store, draft.step, attempt)
            else:
                store.publish(draft.step, attempt)
            return Committed(
                result=result, location=store.location(name), is_new=not prepared.is_stored
            )
        except OSError as failure:
            error = str(failure)
    _discard(store, draft.step, attempt)
    return CommitFailed(result=replace(result, error=error))


def _discard(store: CheckpointStore, step: int, attempt: str) -> None:
    with contextlib.suppress(OSError):  # it may not be there; or the next resume removes it
        store.discard(step, attempt)


def _stored(store: CheckpointStore, name: str, wanted: Manifest | None) -> Manifest | None:
    """The checkpoint as it was published before, if it was. One of the same step may also hold
    another state.
    """
    if name not in store.committed():
        return None
    with contextlib.suppress(CheckpointError):
        stored = store.manifest(name)
        if wanted is None or stored.content_sha256 == wanted.content_sha256:
            return stored
    return None


def _manifest(store: CheckpointStore, written: Mapping[int, Part], code: CodeVersion) -> Manifest:
    """The manifest of parts in the order of their ranks; the first has the header."""
    contents = [part.content for part in written.values()]
    try:
        header = Header.model_validate(contents[0]["header"])
        files = [PartFile.model_validate(content["file"]) for content in contents]
    except (ValidationError, KeyError) as error:
        raise ProtocolError(f"a worker sent an invalid part of a checkpoint: {error}") from None
    kind = store.seal.digest_kind
    return Manifest(
        **header.model_dump(),
        digest_kind=kind,
        root=parts.root([digest for file in files for digest in file.digests], kind),
        parts=tuple(files),
        origin=Origin.now(code),
        parent=_parent(store, header.step),
    )


def _parent(store: CheckpointStore, step: int) -> Parent | None:
    """The newest checkpoint before `step` whose manifest can be read; None if there is none."""
    for name in store.committed():
        if names.step_of(name) < step:
            with contextlib.suppress(CheckpointError, OSError):
                return Parent(name=name, root=store.manifest(name).root)
    return None
