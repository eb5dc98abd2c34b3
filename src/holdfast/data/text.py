"""Text as bytes: any file or folder, or the language reference that comes with Python."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

import numpy as np
import torch

from holdfast.data.dataset import Batch
from holdfast.data.permutation import Indices
from holdfast.errors import JobError

TEST_SHARE: Final = 0.1
"""Share of the text, at its end, that is kept for the test."""


class Windows:
    """Neighbouring stretches of a text, each to be continued byte by byte.

    Args:
        text: At least `length + 1` bytes.
        length: Bytes that a sample gives as context.
    """

    def __init__(self, text: bytes, length: int) -> None:
        self._text, self._length = torch.frombuffer(bytearray(text), dtype=torch.uint8), length
        self.fingerprint = f"windows:{length}:{hashlib.sha256(text).hexdigest()[:32]}"

    def __len__(self) -> int:
        return (len(self._text) - 1) // self._length

    def batch(self, indices: Indices, generator: torch.Generator) -> Batch:  # noqa: ARG002
        """`(x, y)`, int64[n, length] each: bytes, and the bytes that follow them."""
        starts = torch.from_numpy(indices)[:, None] * self._length
        windows = self._text[starts + torch.arange(self._length + 1)].long()
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()

    def byte_entropy(self) -> float:
        """The entropy of the single bytes, nats: what a model without context could reach."""
        shares = np.bincount(self._text.numpy()) / len(self._text)
        shares = shares[shares > 0]
        return float(-(shares * np.log(shares)).sum())


def windows(path: Path | None, length: int) -> tuple[Windows, Windows]:
    """Training and test windows.

    Args:
        path: A file; a folder, of which all files are read in the order of their names; or None
            for Python's own language reference.
        length: Bytes that a sample gives as context.

    Raises:
        JobError: The text cannot be read or is too short.
    """
    text = _reference() if path is None else _read(path)
    cut = int(len(text) * (1 - TEST_SHARE))
    if min(cut, len(text) - cut) <= length:
        raise JobError(
            f"{path}: {len(text)} bytes are too few for windows of {length}; "
            "set data.path to more text, or data.length lower"
        )
    return Windows(text[:cut], length), Windows(text[cut:], length)


def _read(path: Path) -> bytes:
    try:
        if not path.is_dir():
            return path.read_bytes()
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return b"\n".join(file.read_bytes() for file in files)
    except OSError as error:
        raise JobError(
            f"text {path}: {error.strerror}; set data.path to a file or folder"
        ) from None


def _reference() -> bytes:
    from pydoc_data.topics import topics  # half a megabyte that only this text needs

    return "\n".join(topics[name] for name in sorted(topics)).encode()
