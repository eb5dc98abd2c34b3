"""Writing one worker's part of a checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from holdfast.arena.layout import Layout
from holdfast.arena.tensors import DTYPES
from holdfast.checkpoint import parts
from holdfast.checkpoint.manifest import PartFile


def write_part(
    directory: Path, flat: torch.Tensor, layout: Layout, rank: int, world_size: int
) -> PartFile:
    """Write the chunks that `rank` owes into `directory`, and sync them.

    Args:
        directory: The checkpoint's temporary directory; made if it is not there.
        flat: The state, uint8[layout.size_bytes].
        layout: What lies where in it.
        rank: The worker that writes.
        world_size: The workers that write.

    Raises:
        OSError: The disk is full or gone.
    """
    directory.mkdir(parents=True, exist_ok=True)
    chunks = parts.chunks_of(rank, world_size, layout.size_bytes)
    start, end = parts.byte_range(chunks, layout.size_bytes)
    tensors = {
        piece.key: flat[piece.start : piece.end].view(DTYPES[piece.dtype]).view(piece.shape)
        for piece in parts.pieces(layout, start, end)
    }
    path = directory / f"part-{rank}-of-{world_size}.safetensors"
    try:
        save_file(tensors, path)
    except SafetensorError as error:
        raise OSError(f"{path}: {error}") from None
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        size = os.fstat(fd).st_size
    finally:
        os.close(fd)
    digests = parts.digests(flat[start:end].numpy().data)
    return PartFile(file=path.name, size_bytes=size, first_chunk=chunks.start, digests=digests)
