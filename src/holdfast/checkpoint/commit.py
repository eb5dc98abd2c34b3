"""Commit: makes the parts that the workers of a host have staged a checkpoint, in two phases.

Each host keeps whole checkpoints. It prepares a draft with a manifest, and publishes or discards
the draft once the coordinator knows that all hosts are prepared. So publishing needs no space, and
what one host publishes, the others have at least as a draft.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pydantic import ValidationError

from holdfast.checkpoint import names, parts
from holdfast.checkpoint.manifest import Header, Manifest, Origin, Parent, PartFile
from holdfast.checkpoint.part_file import WrittenPart
from holdfast.checkpoint.store import CheckpointStore
from holdfast.core.code_version import CodeVersion
from holdfast.core.protocol import CheckpointPart, CheckpointResult, Draft
from holdfast.errors import CheckpointError, ProtocolError
from holdfast.strict import Strict

Write = Callable[[str, Header, int], WrittenPart]
"""Writes a staged state into a draft: the draft's name, the description of the state, and where it
is staged. Raises OSError."""


class _Content(Strict):
    """The content of a part.

    Attributes:
        others: The XXH3 of each chunk of this worker's replica, and nothing for those that it has
            staged; empty if replicas were compared otherwise.
        offset: Start of the staged state in the arena's file, bytes; only the first part has it.
        header: Header of the checkpoint; only the first part has it.
    """

    others: tuple[str, ...]
    offset: int = 0
    header: Header | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A draft that awaits its end.

    Attributes:
        draft: Facts that the coordinator needs to know of it.
        attempt: Attempt that has written it; see `names.draft_name`.
        is_stored: True if the same checkpoint was published before, by a generation that did not
            live to report it.
        differs: True if the replicas of workers differ, so that it was not written.
    """

    draft: Draft
    attempt: str
    is_stored: bool = False
    differs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """End of a draft: this host has the checkpoint, durably, or it is deleted.

    Attributes:
        result: Result for its workers, with the reason if it has failed.
        is_new: True if this host has a checkpoint that was not there before.
    """

    result: CheckpointResult
    is_new: bool


def prepare(
    store: CheckpointStore,
    staged: Mapping[int, CheckpointPart],
    attempt: str,
    write: Write,
    code: CodeVersion,
) -> Prepared:
    """Write what the workers of a host have staged, as a durable draft with a manifest.

    Args:
        store: The host's checkpoints.
        staged: The parts of all its workers, by rank.
        attempt: The generation, in this start of the run.
        write: Writes the staged state.
        code: The user's code.

    Raises:
        ProtocolError: A worker has sent something that is no part.
    """
    first = staged[min(staged)]
    differs = False
    stall_s = max(part.stall_s for part in staged.values())
    name = names.checkpoint_name(first.step)
    draft = Draft(number=first.number, step=first.step, stall_s=stall_s)
    error = next((part.error for part in staged.values() if part.error), "")
    try:
        manifest = None
        if not error:
            header, file = _written(staged, names.draft_name(first.step, attempt), write)
            manifest = _manifest(store, header, file, code)
        # A generation before may have published it, and not lived to report it.
        stored = _stored(store, name, manifest)
        if stored is not None:
            root = replace(draft, root=stored.root)
            return Prepared(draft=root, attempt=attempt, is_stored=True)
        # With its manifest the draft is whole, and only its name is missing.
        if manifest is not None:
            store.prepare(store.seal.signed(manifest), attempt)
            return Prepared(draft=replace(draft, root=manifest.root), attempt=attempt)
    except OSError as failure:
        error = str(failure)
    except CheckpointError as difference:
        error = str(difference)
        differs = True
    _discard(store, first.step, attempt)  # it must not hold the space that was missing
    return Prepared(draft=replace(draft, error=error), attempt=attempt, differs=differs)


def complete(store: CheckpointStore, prepared: Prepared, result: CheckpointResult) -> Completed:
    """Publish a draft, or discard it if the checkpoint has failed."""
    draft = prepared.draft
    attempt = prepared.attempt
    # The host publishes if it has a draft and the coordinator has not called the checkpoint failed.
    error = draft.error or result.error
    if not error:
        try:
            # The same state is published already, so its second draft is of no use.
            if prepared.is_stored:
                _discard(store, draft.step, attempt)
            else:
                store.publish(draft.step, attempt)
            return Completed(result=result, is_new=not prepared.is_stored)
        except OSError as failure:
            error = str(failure)
    _discard(store, draft.step, attempt)
    return Completed(result=replace(result, error=error), is_new=False)


def _discard(store: CheckpointStore, step: int, attempt: str) -> None:
    with contextlib.suppress(OSError):  # it may not be there; or the next resume removes it
        store.discard(step, attempt)


def _stored(store: CheckpointStore, name: str, wanted: Manifest | None) -> Manifest | None:
    """The checkpoint as it was published before, if it was. One of the same step may also hold
    another state.
    """
    if name not in store.committed():
        return None
    with contextlib.suppress(CheckpointError, OSError):
        stored = store.manifest(name)
        if wanted is None or stored.content_sha256 == wanted.content_sha256:
            return stored
    return None


def _written(
    staged: Mapping[int, CheckpointPart], draft: str, write: Write
) -> tuple[Header, PartFile]:
    """Write a staged state; returns its description and its file.

    Raises:
        CheckpointError: The replicas of workers differ.
    """
    try:
        contents = {rank: _Content.model_validate(part.content) for rank, part in staged.items()}
    except ValidationError as error:
        raise ProtocolError(f"a worker sent an invalid part of a checkpoint: {error}") from None
    first = next((each for each in contents.values() if each.header is not None), None)
    if first is None or first.header is None:
        raise ProtocolError("no worker has sent the header of a checkpoint")
    part = write(draft, first.header, first.offset)
    # One worker has staged each chunk. All others must have had the same bytes in their replicas.
    for rank, content in contents.items():
        pairs = zip(content.others, part.staged_digests, strict=False)
        for number, (own, staged_digest) in enumerate(pairs):
            if own and own != staged_digest:
                raise CheckpointError(
                    f"the replica of rank {rank} differs from that of another worker in chunk "
                    f"{number} of the state"
                )
    return first.header, part.file


def _manifest(
    store: CheckpointStore, header: Header, file: PartFile, code: CodeVersion
) -> Manifest:
    kind = store.seal.digest_kind
    return Manifest(
        **dict(header),
        digest_kind=kind,
        root=parts.root(file.digests, kind),
        parts=(file,),
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
