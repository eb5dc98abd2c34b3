"""Tokens: a text as the tokenizer of a model folder splits it, once on a host."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch

from holdfast.data.formats.text import TEST_SHARE, Windows, split_tokens
from holdfast.errors import JobError

_FILE: Final = "tokenizer.json"
_PIECE: Final = 1 << 20
"""Characters that are tokenized at a time, up to the end of a line."""


def key_of(text: bytes, folder: Path) -> dict[str, Any]:
    """Values that determine the tokens.

    Raises:
        JobError: The folder has no tokenizer.
    """
    return {
        "text": hashlib.sha256(text).hexdigest(),
        "tokenizer": hashlib.sha256(_tokenizer_file(folder)).hexdigest(),
        "test_share": TEST_SHARE,
    }


def build(text: bytes, folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """The tokens of the training part and the test part, int32.

    Raises:
        JobError: The text is not UTF-8, or the tokenizer cannot be read.
    """
    from tokenizers import Tokenizer  # starts threads

    try:
        tokenizer = Tokenizer.from_buffer(_tokenizer_file(folder))
    except Exception as error:  # noqa: BLE001  # the library raises plain exceptions
        raise JobError(f"{folder / _FILE} is no tokenizer: {error}") from None
    try:
        words = text.decode()
    except UnicodeDecodeError as error:
        raise JobError(f"the text is not UTF-8: {error}; convert it") from None
    cut = int(len(words) * (1 - TEST_SHARE))
    for name, part in (("training", words[:cut]), ("test", words[cut:])):
        ids = [
            token
            for piece in _pieces(part)
            for token in tokenizer.encode(piece, add_special_tokens=False).ids
        ]
        yield name, torch.tensor(ids, dtype=torch.int32)


def windows(found: Mapping[str, torch.Tensor], length: int) -> tuple[Windows, Windows]:
    """Training and test windows of `length` tokens.

    Raises:
        JobError: The text is too short.
    """
    return split_tokens(found["training"].numpy(), found["test"].numpy(), length)


def _pieces(text: str) -> Iterator[str]:
    piece = ""
    for line in text.splitlines(keepends=True):
        piece += line
        if len(piece) >= _PIECE:
            yield piece
            piece = ""
    if piece:
        yield piece


def _tokenizer_file(folder: Path) -> bytes:
    path = folder / _FILE
    try:
        content = path.read_bytes()
        json.loads(content)
    except OSError as error:
        raise JobError(f"{path}: {error.strerror}; the model folder needs its tokenizer") from None
    except ValueError as error:
        raise JobError(f"{path} is no JSON: {error}") from None
    return content
