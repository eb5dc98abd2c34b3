"""Text as bytes: a file, a folder, or the language reference that comes with Python."""

from __future__ import annotations

import hashlib
import os
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from holdfast.data.dataset import Batch
from holdfast.data.permutation import Indices
from holdfast.errors import JobError

TEST_SHARE: Final = 0.1
"""Share of the text, at its end, that forms the test set."""
COUNT_CHUNK_BYTES: Final = 1 << 20
"""Bytes that are counted at a time: numpy needs eight times their size."""


Tokens = NDArray[np.uint8] | NDArray[np.int32]


class Windows:
    """Neighbouring windows of a text; the targets are the bytes or tokens that follow.

    Args:
        text: At least `length + 1` bytes or tokens.
        length: Bytes or tokens of a sample.
    """

    reads_ahead = True

    def __init__(self, text: bytes | memoryview | Tokens, length: int) -> None:
        self._text: Tokens = text if isinstance(text, np.ndarray) else np.frombuffer(text, np.uint8)
        self._length = length
        self.fingerprint = f"windows:{length}:{hashlib.sha256(self._text.data).hexdigest()[:32]}"

    def __len__(self) -> int:
        return (len(self._text) - 1) // self._length

    def batch(self, indices: Indices, generator: torch.Generator) -> Batch:  # noqa: ARG002
        """`(x, y)`, int64[n, length] each: bytes or tokens, and those that follow them."""
        places = indices[:, None] * self._length + np.arange(self._length + 1)
        windows = torch.from_numpy(self._text[places]).long()
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()

    @cached_property
    def byte_entropy(self) -> float:
        """The entropy of single bytes, nats: the best loss of a model without context."""
        counts = np.zeros(256, np.int64)
        for start in range(0, len(self._text), COUNT_CHUNK_BYTES):
            counts += np.bincount(self._text[start : start + COUNT_CHUNK_BYTES], minlength=256)
        shares = counts[counts > 0] / len(self._text)
        return float(-(shares * np.log(shares)).sum())


def windows(path: Path | None, length: int) -> tuple[Windows, Windows]:
    """Training and test windows.

    Args:
        path: A file; a folder, all files of which are read in the order of their names; or None for
            Python's own language reference.
        length: Bytes of a sample.

    Raises:
        JobError: The text cannot be read or is too short.
    """
    where = "the language reference" if path is None else f"text {path}"
    return split_windows(read(path), length, where)


def read(path: Path | None) -> bytes:
    """The text of a file, a folder, or Python's own language reference.

    Raises:
        JobError: It cannot be read.
    """
    return _reference() if path is None else _read(path)


def split_windows(text: bytes, length: int, where: str) -> tuple[Windows, Windows]:
    """Training and test windows of `text`, which errors call `where`.

    Raises:
        JobError: The text is too short.
    """
    cut = int(len(text) * (1 - TEST_SHARE))
    if min(cut, len(text) - cut) <= length:
        raise JobError(
            f"{where}: {len(text)} bytes are too few for windows of {length}; "
            "use more text, or a smaller data.length"
        )
    whole = memoryview(text)
    return Windows(whole[:cut], length), Windows(whole[cut:], length)


def split_tokens(training: Tokens, test: Tokens, length: int) -> tuple[Windows, Windows]:
    """Windows of a text that is tokens already.

    Raises:
        JobError: It is too short.
    """
    if min(len(training), len(test)) <= length:
        raise JobError(
            f"the text has {len(training)} tokens to train on and {len(test)} to test with, too "
            f"few for windows of {length}; use more text, or a smaller data.length"
        )
    return Windows(training, length), Windows(test, length)


def _read(path: Path) -> bytes:
    if path.is_dir():
        return b"\n".join(_content(file) for file in _files(path))
    if path.exists() and not path.is_file():
        raise JobError(f"text {path} is not a file or folder; set data.path to one")
    return _content(path)


def _files(folder: Path) -> list[Path]:
    """All files below a folder, in the order of their names."""

    def refuse(error: OSError) -> None:
        raise JobError(f"text {error.filename}: {error.strerror}; make it readable, or remove it")

    files = list[Path]()
    for root, folders, names in os.walk(folder, onerror=refuse):
        for name in folders:
            if Path(root, name).is_symlink():
                raise JobError(
                    f"text {Path(root, name)} is a link to another folder, which is not followed; "
                    "replace it by a copy, or remove it"
                )
        files += (Path(root, name) for name in names)
    return sorted(file for file in files if file.is_file() or file.is_symlink())


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise JobError(
            f"text {path}: {error.strerror}; set data.path to a file or folder"
        ) from None


def _reference() -> bytes:
    from pydoc_data.topics import topics  # half a megabyte, needed for this text only

    return "\n".join(topics[name] for name in sorted(topics)).encode()
