"""Host: the profile of this host. Its devices are measured by a process that has torch."""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from holdfast.errors import HoldfastError, JobError
from holdfast.hardware.profile import Device, Disk, HostProfile, Memory, Precision
from holdfast.hardware.profile_file import PROFILE
from holdfast.linux.host_memory import available, total_bytes

TIMEOUT_S: Final = 120.0
"""Time that importing torch and measuring may take."""


def profile_here(folder: Path) -> HostProfile:
    """Measure all of this host.

    Args:
        folder: Folder whose disk is measured.

    Raises:
        JobError: The disk cannot be written to.
        HoldfastError: The devices cannot be measured.
    """
    disk = measure_disk(folder)
    memory = Memory(total_bytes=total_bytes(), available_bytes=available().size_bytes)
    return replace(_measured(()), memory=memory, disk=disk)


def devices_here(device: str, precision: Precision) -> tuple[Device, ...]:
    """Measure what workers of this host compute on, within a second or two.

    Args:
        device: Key of the job: `auto`, `cpu` or `cuda`.
        precision: Precision of the job.

    Raises:
        HoldfastError: They cannot be measured.
    """
    return _measured(("--scores-for", device, "--precision", precision)).devices


def _measured(words: Sequence[str]) -> HostProfile:
    remedy = "see whether torch and the GPU driver work here: holdfast doctor"
    try:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "holdfast.hardware.measure"),
                *("--parent", str(os.getpid()), *words),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    except subprocess.TimeoutExpired:
        raise HoldfastError(f"measuring took longer than {TIMEOUT_S:.0f} s; {remedy}") from None
    try:
        return PROFILE.validate_json(done.stdout)
    except ValidationError:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["no output"])[-1]
        raise HoldfastError(
            f"the process that measures ended with {done.returncode}: {last}; {remedy}"
        ) from None


BLOCK_BYTES: Final = 1 << 20
"""Bytes that are written or read at a time."""
FILE_BYTES: Final = 512 << 20
"""The largest file; a slow disk gets a smaller one."""
FREE_SHARE: Final = 0.1
"""Most of the free space that the file takes."""
LIMIT_S: Final = 1.0
"""Most time of writing, of reading and of small writes."""
SYNCS: Final = 200
"""Most small writes that are made."""
SMALL_BYTES: Final = 4096


def measure_disk(folder: Path) -> Disk:
    """Measure the disk below a directory; nothing is left in it.

    The page cache is bypassed (O_DIRECT, see open(2)) where the file system can do that. Elsewhere
    writes are synced, and the cache is asked to forget the file before it is read.

    Raises:
        JobError: It cannot be written to.
    """
    try:
        free = shutil.disk_usage(folder).free
        most = max(1, min(FILE_BYTES, int(FREE_SHARE * free)) // BLOCK_BYTES)
        # Files without a name: the kernel removes them, whatever happens to this process.
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            direct = _bypass_cache(file.fileno())
            blocks, write_rate = _write(file.fileno(), most)
            read_rate = _read(file.fileno(), blocks)
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            syncs = _sync_times(file.fileno())
    except OSError as error:
        raise JobError(
            f"the disk of {folder} cannot be measured: {error.strerror or error}; name a directory "
            "that can be written to by --path"
        ) from None
    return Disk(
        path=str(folder.resolve()),
        write_bytes_per_s=write_rate,
        read_bytes_per_s=read_rate,
        fsync_s=statistics.median(syncs),
        fsync_p99_s=sorted(syncs)[round(0.99 * (len(syncs) - 1))],
        direct=direct,
    )


def _bypass_cache(fd: int) -> bool:
    """Have reads and writes bypass the page cache; returns whether the file system does that."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_DIRECT)
    except OSError:
        return False
    return True


def _write(fd: int, most: int) -> tuple[int, float]:
    """Write at most so many blocks; returns how many, and bytes a second until they are durable."""
    with mmap.mmap(
        -1, BLOCK_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    ) as block:  # begins at a page, as O_DIRECT demands
        block.write(os.urandom(BLOCK_BYTES))  # a disk may compress what repeats itself
        began = time.perf_counter()
        blocks = _count(most, lambda number: os.pwrite(fd, block, number * BLOCK_BYTES))
        os.fsync(fd)
        return blocks, blocks * BLOCK_BYTES / (time.perf_counter() - began)


def _read(fd: int, blocks: int) -> float:
    """Read so many blocks, or fewer if that takes long; returns bytes per second."""
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    with mmap.mmap(-1, BLOCK_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        block.write(bytes(BLOCK_BYTES))  # so that its pages exist
        began = time.perf_counter()
        read = _count(blocks, lambda number: os.preadv(fd, [block], number * BLOCK_BYTES))
        return read * BLOCK_BYTES / (time.perf_counter() - began)


def _count(most: int, transfer: Callable[[int], int]) -> int:
    """Transfer whole blocks until LIMIT_S are over; returns how many.

    Raises:
        OSError: The file system transfers only a part of a block: it is full.
    """
    until = time.perf_counter() + LIMIT_S
    for number in range(most):
        if transfer(number) != BLOCK_BYTES:
            raise OSError("there is too little space")
        if time.perf_counter() > until:
            return number + 1
    return most


def _sync_times(fd: int) -> list[float]:
    """Seconds that each of some small writes takes until it is durable."""
    times = list[float]()
    until = time.perf_counter() + LIMIT_S
    data = os.urandom(SMALL_BYTES)
    while len(times) < SYNCS and (not times or time.perf_counter() < until):
        began = time.perf_counter()
        os.pwrite(fd, data, len(times) * SMALL_BYTES)
        os.fsync(fd)
        times.append(time.perf_counter() - began)
    return times
