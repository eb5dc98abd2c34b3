"""Disk: how fast a file is written and read if nothing else is done with it."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from holdfast.linux.files import write_synced

BLOCK_BYTES: Final = 4 << 20
_libc = ctypes.CDLL(None, use_errno=True)


def sync_file_system(folder: Path) -> None:
    """Make all durable that any process has written to the file system of a folder; see syncfs(2).

    Raises:
        OSError: It cannot be written.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _libc.syncfs(fd):
            raise OSError(ctypes.get_errno(), f"syncfs of {folder}")
    finally:
        os.close(fd)


def forget(folder: Path) -> None:
    """Have the page cache forget all files below a folder, which are durable, so that they are read
    from the disk.
    """
    sync_file_system(folder)
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def write_raw(path: Path, size_bytes: int, block: memoryview) -> None:
    """Write a new file of a block's content, past the page cache where there is a way, and make it
    durable.
    """
    blocks, rest = divmod(size_bytes, len(block))
    write_synced(path, [*[block] * blocks, block[:rest]])


def read_raw(path: Path, block: memoryview, *, direct: bool) -> None:
    """Read a file block by block, past the page cache if `direct` and where there is a way; else
    the kernel reads ahead.
    """
    fd = -1
    if direct:
        with suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
    if fd < 0:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        at = 0
        count = len(block)
        while count == len(block):
            count = os.preadv(fd, [block], at)
            at += count
    finally:
        os.close(fd)


@contextmanager
def raw_block() -> Iterator[memoryview]:
    """Memory of BLOCK_BYTES that begins on a page, as O_DIRECT demands; no disk can compress it."""
    with mmap.mmap(-1, BLOCK_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.write(os.urandom(BLOCK_BYTES))
        with memoryview(memory) as view:
            yield view
