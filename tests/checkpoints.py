"""Checkpoints for tests, made of parts that were written as workers write theirs."""

from contextlib import ExitStack, closing, contextmanager
from functools import partial

import torch

from holdfast.agent.checkpoints import Checkpoints
from holdfast.arena.holding import Holding
from holdfast.arena.layout import Field, Layout
from holdfast.arena.memory import Arena
from holdfast.checkpoint import names, parts
from holdfast.checkpoint.manifest import Header, Manifest, Origin, Tensor
from holdfast.checkpoint.part_file import write_part
from holdfast.checkpoint.parts import DigestKind
from holdfast.checkpoint.retention import Retention, log_retention_event
from holdfast.checkpoint.sealing.seal import UNSEALED
from holdfast.checkpoint.storage import Storage
from holdfast.checkpoint.store import CheckpointStore
from holdfast.core.checkpoints.retention import RetentionPolicy
from holdfast.core.code_version import UNKNOWN
from holdfast.worker.checkpoints.restore import check_layout, read_into

ATTEMPT = "0a"


def store_in(root, seal=UNSEALED):
    return CheckpointStore(Storage(root), seal)


def bytes_of(flat):
    return flat.numpy().data


def digests_of(data, kind=DigestKind.XXH3):
    """The digest of every chunk of `data`, which begins at a chunk's start."""
    starts = range(0, len(data), parts.CHUNK_BYTES)
    return [parts.digest(data[start : start + parts.CHUNK_BYTES], kind) for start in starts]


def layout_of(width=3000):
    fields = [Field("w", "F32", (1000, width)), Field("n", "I64", ()), Field("b", "BF16", (5, 7))]
    return Layout.pack(fields)


def state_of(layout, seed=0):
    generator = torch.Generator().manual_seed(seed)
    flat = torch.zeros(layout.size_bytes, dtype=torch.uint8)
    for entry in layout.entries:
        room = flat[entry.offset : entry.end]
        room.copy_(torch.randint(256, room.shape, generator=generator, dtype=torch.uint8))
    return flat


def header_of(layout, step, **fields):
    tensors = tuple(
        Tensor(name=e.name, dtype=e.dtype, shape=e.shape, offset=e.offset, strides=e.strides)
        for e in layout.entries
    )
    plain = {
        "generation": 1, "weights_config": {"seed": 0}, "uninitialized": (), "state": {},
        "state_dicts": {"": {e.name: e.name for e in layout.entries}},
        "loss": None, "metrics": {}, "order": {}, "versions": {},
    }  # fmt: skip
    known = {"step": step, "tensors": tensors, "size_bytes": layout.size_bytes}
    return Header(**{**plain, **known, **fields})


def write(root, step, flat, layout, world=2, attempt=ATTEMPT, seal=UNSEALED):
    """Write all parts of a checkpoint; returns their records."""
    storage, draft, state = Storage(root), names.draft_name(step, attempt), bytes_of(flat)
    return [
        write_part(storage, draft, state, layout, rank, world, seal).file for rank in range(world)
    ]


class Staged:
    """What workers have staged, by its place, and what writes it."""

    def __init__(self, root):
        self._root, self._states = root, []

    def stage(self, write):
        """Stage what `write` writes; it takes a draft and a header. Returns its place."""
        self._states.append(write)
        return len(self._states) - 1

    def write(self, draft, header, offset):
        return self._states[offset](draft, header)


@contextmanager
def host_checkpoints(root, keep, log, store=None, code=UNKNOWN, every=0):
    """The checkpoints of a host whose workers have staged what is in `staged`.

    Without `keep`, nothing reads them back and deletes old ones.
    """
    staged = Staged(root)
    store = store or store_in(root)
    with closing(Arena.create(2)) as arena, ExitStack() as owned:
        arena.generation = 1
        delete_old = nothing
        if keep is not None:
            policy = RetentionPolicy(last=keep, every=every)
            report = partial(log_retention_event, log, where={})
            delete_old = owned.enter_context(Retention(store, policy, report)).request
        found = Checkpoints(store, ATTEMPT, log, arena, staged.write, delete_old, code=code)
        found.staged, found.arena, found.delete_old = staged, arena, delete_old
        with found:
            yield found


def nothing():
    """Old checkpoints stay."""


def save(root, step, flat, layout, world=2, seal=UNSEALED, code=UNKNOWN, **fields):
    """Write a checkpoint and commit it; returns its directory."""
    written, kind = write(root, step, flat, layout, world, seal=seal), seal.digest_kind
    whole = Manifest(
        **header_of(layout, step, **fields).model_dump(),
        digest_kind=kind,
        root=parts.root([digest for part in written for digest in part.digests], kind),
        parts=tuple(written),
        origin=Origin.now(code),
        parent=None,
    )
    store = store_in(root)
    store.prepare(seal.signed(whole), ATTEMPT)
    return root / store.publish(step, ATTEMPT)


def restore(directory, layout, seal=UNSEALED):
    """The state of a checkpoint, as a worker that is to have `layout` restores it."""
    store = store_in(directory.parent, seal)
    flat = torch.empty(layout.size_bytes, dtype=torch.uint8)
    manifest = store.manifest(directory.name)
    check_layout(str(directory), manifest.layout, layout)
    read_into(flat, Holding.of_all(layout), store, directory.name, manifest)
    return flat
