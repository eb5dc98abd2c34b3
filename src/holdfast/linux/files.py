"""Files whose content and names survive a crash of the machine; see fsync(2). Also their state."""

from __future__ import annotations

import ctypes
import fcntl
import json
import mmap
import os
import sysconfig
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final

INSTALLED: Final = {"site-packages", "dist-packages"}
"""Folders of installed distributions."""
_KEEP_SIZE: Final = 1
"""FALLOC_FL_KEEP_SIZE of fallocate(2)."""


def write_synced(path: Path, pieces: Iterable[bytes | memoryview]) -> int:
    """Write a new file and make its content durable; returns its size in bytes.

    Pieces of memory that begin on a page and are whole pages long go straight to the disk, past the
    page cache, which takes a twentieth of the processor time: see O_DIRECT in open(2).

    Its name is durable once its directory is synced.

    Raises:
        OSError: The disk is full or unreachable, or there is a file with this name.
    """
    with path.open("xb", buffering=0) as file:
        direct = _Direct(file.fileno())
        for piece in pieces:
            left = memoryview(piece).cast("B")
            direct.set(is_wanted=_is_paged(left))
            while left:
                left = left[file.write(left) :]
        direct.set(is_wanted=False)
        os.fsync(file.fileno())
        return file.tell()


def read_at(path: Path, start: int, into: memoryview, *, cached: bool) -> int:
    """Fill `into` with the bytes of a file from `start` on; returns how many there were.

    Args:
        path: The file.
        start: First byte to read.
        into: Takes the bytes.
        cached: True if a copy in the page cache may serve; if not, the disk is read, and straight
            to memory that consists of whole pages.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        if not cached:
            os.posix_fadvise(file.fileno(), start, len(into), os.POSIX_FADV_DONTNEED)
            is_aligned = start % mmap.PAGESIZE == 0 and _is_paged(into)
            _Direct(file.fileno()).set(is_wanted=is_aligned)
        done = 0
        while done < len(into) and (count := os.preadv(file.fileno(), [into[done:]], start + done)):
            done += count
        return done


class _Direct:
    """Switches direct access to a file on and off. Some file systems know none; tmpfs and many
    network file systems are such.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._is_on = False
        self._is_known = True

    def set(self, *, is_wanted: bool) -> None:
        """Read and write directly from now on, if that is wanted and possible."""
        if is_wanted == self._is_on or not self._is_known:
            return
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL) & ~os.O_DIRECT
        try:
            fcntl.fcntl(self._fd, fcntl.F_SETFL, flags | (os.O_DIRECT if is_wanted else 0))
        except OSError:
            self._is_known = False
        else:
            self._is_on = is_wanted


def _is_paged(memory: memoryview) -> bool:
    """True if memory consists of whole pages that this process may write to."""
    if memory.readonly or not len(memory) or len(memory) % mmap.PAGESIZE:
        return False
    return ctypes.addressof(ctypes.c_char.from_buffer(memory)) % mmap.PAGESIZE == 0


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
    except OSError as error:
        draft.unlink(missing_ok=True)
        error.filename = str(path)  # a write that fails names no file
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


_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def state_of(files: Iterable[Path]) -> bytes:
    """Changes with the files and with every boot of the machine.

    Raises:
        OSError: A file is missing.
    """
    boot = _BOOT_ID.read_text(encoding="ascii").strip()
    states = [
        (path.name, (state := path.stat()).st_ino, state.st_size, state.st_ctime_ns)
        for path in sorted(files)
    ]
    return json.dumps([boot, states]).encode()


def reserve(fd: int, size: int) -> None:
    """Allocate the space that a file will grow into, so that it can on a full disk.

    See fallocate(2). Nothing is reserved where the file system cannot.

    Args:
        fd: Descriptor of the file, which keeps its size.
        size: Bytes after its end.
    """
    end = os.fstat(fd).st_size
    ctypes.CDLL(None).fallocate(fd, _KEEP_SIZE, ctypes.c_int64(end), ctypes.c_int64(size))


@cache
def is_installed(file: str) -> bool:
    """True if a file belongs to Python or to an installed distribution."""
    path = Path(file)
    standard = [Path(sysconfig.get_path(key)) for key in ("stdlib", "platstdlib")]
    return bool(INSTALLED & {*path.parts}) or any(map(path.is_relative_to, standard))
