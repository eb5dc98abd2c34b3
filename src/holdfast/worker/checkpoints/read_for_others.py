"""Read for others: a checkpoint that only some workers can read, where each holds a part of it.

    reader    manifest ─▶ chunk ─▶ chunk ─▶ …      read and verified, then sent to all
    others    each takes its part of every chunk

A worker that holds all of the state gets it from another worker's memory instead; see
`worker.membership.state_transfer`.
"""

from __future__ import annotations

from typing import Final

import torch

from holdfast.arena.replica import Replica
from holdfast.checkpoint import parts
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.reader import read_state
from holdfast.checkpoint.store import CheckpointStore
from holdfast.collectives.group import Group
from holdfast.worker.process_groups.collectives import broadcast

_SIZE_BYTES: Final = 8


def read_for_others(
    store: CheckpointStore, name: str, replica: Replica, group: Group, reader: int
) -> Manifest:
    """Fill a replica, and those of the other members, with their parts of a checkpoint.

    Args:
        store: Has the checkpoint, where the reader runs.
        name: Its name.
        replica: Replica of this worker.
        group: The members, who have met for collectives.
        reader: The rank that reads.

    Returns:
        The manifest.

    Raises:
        Aborted: The generation is over.
        CheckpointError: The reader finds it damaged now.
    """
    device = replica.flat.device
    reads = group.rank == reader
    text = store.manifest(name).model_dump_json().encode() if reads else b""
    size = torch.tensor(list(len(text).to_bytes(_SIZE_BYTES)), dtype=torch.uint8, device=device)
    broadcast(size, reader, group)
    sent = torch.empty(int.from_bytes(size.tolist()), dtype=torch.uint8)
    if reads:
        sent.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    sent = sent.to(device)
    broadcast(sent, reader, group)
    manifest = Manifest.parse(sent.cpu().numpy().tobytes(), name)
    chunk = torch.empty(parts.CHUNK_BYTES, dtype=torch.uint8)
    memory = chunk.numpy().data
    chunks = read_state(store, name, manifest, lambda start, end: memory[: end - start])
    for number in range(parts.num_chunks(manifest.size_bytes)):
        start, end = parts.byte_range(range(number, number + 1), manifest.size_bytes)
        if reads:
            next(chunks)
        content = chunk[: end - start].to(device)
        broadcast(content, reader, group)
        for piece in replica.holding.between(start, end):
            at = piece.start - start
            replica.flat[piece.own : piece.own + piece.size].copy_(content[at : at + piece.size])
    return manifest
