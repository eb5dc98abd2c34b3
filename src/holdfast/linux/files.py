"""Files whose content and names survive a crash of the machine; see fsync(2)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def write_synced(path: Path, pieces: Iterable[bytes | memoryview]) -> int:
    """Write a new file and make its content durable; returns its size in bytes.

    Its name is durable once its directory is synced.

    Raises:
        OSError: The disk is full or unreachable, or there is a file with this name.
    """
    with path.open("xb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def replace_synced(path: Path, data: bytes) -> None:
    """Make `data` the content of a file; a crash leaves the old content or the new, whole.

    Raises:
        OSError: The disk is full or unreachable.
    """
    draft = path.with_suffix(".tmp")
    draft.unlink(missing_ok=True)  # left by a crash
    if path.exists() and path.read_bytes() == data:
        return
    try:
        write_synced(draft, [data])
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    draft.replace(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
