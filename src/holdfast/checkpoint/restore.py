"""Reading a checkpoint into a replica, believing nothing that its digests do not confirm."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from holdfast.arena.layout import Layout
from holdfast.arena.tensors import DTYPES
from holdfast.checkpoint import parts
from holdfast.checkpoint.manifest import Manifest
from holdfast.errors import CheckpointError


def read_state(directory: Path, manifest: Manifest, layout: Layout) -> torch.Tensor:
    """The state that a checkpoint holds, uint8[layout.size_bytes], verified.

    Args:
        directory: The checkpoint.
        manifest: Its manifest, already checked.
        layout: What the reader expects; the checkpoint's must be the same.

    Raises:
        CheckpointError: It holds another model or optimizer, or a part of it is damaged.
    """
    _check_layout(directory, manifest.layout, layout)
    flat = torch.zeros(layout.size_bytes, dtype=torch.uint8)
    for part in manifest.parts:
        chunks = range(part.first_chunk, part.first_chunk + len(part.digests))
        start, end = parts.byte_range(chunks, layout.size_bytes)
        _read_part(directory / part.file, parts.pieces(layout, start, end), flat)
        found = parts.digests(flat[start:end].numpy().data)
        for number, (mine, stated) in enumerate(zip(found, part.digests, strict=True)):
            if mine != stated:
                raise CheckpointError(
                    f"{directory / part.file}: chunk {part.first_chunk + number} of the state "
                    "does not match its digest"
                )
    return flat


def _read_part(path: Path, pieces: list[parts.Piece], flat: torch.Tensor) -> None:
    try:
        with safe_open(path, framework="pt") as file:
            for piece in pieces:
                target = flat[piece.start : piece.end].view(DTYPES[piece.dtype]).view(piece.shape)
                target.copy_(file.get_tensor(piece.key))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None


def _check_layout(directory: Path, stored: Layout, expected: Layout) -> None:
    if stored == expected:
        return
    there, here = set(stored.entries), set(expected.entries)
    odd = min(there ^ here, key=lambda entry: (entry.offset, entry.name), default=None)
    if odd is None:
        raise CheckpointError(
            f"{directory} has the tensors of this job in another order, more than once, or in "
            f"{stored.size_bytes} bytes, not {expected.size_bytes}; resume with the job that "
            "wrote it"
        )
    whose = "the checkpoint" if odd in there else "this job"
    raise CheckpointError(
        f"{directory} is of another model or optimizer: only {whose} has {odd.name} as "
        f"{odd.dtype}{list(odd.shape)}; resume with the job that wrote it"
    )
