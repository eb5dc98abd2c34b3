"""Memory: the shared memory of a run, by making an arena of its size, and what is left besides."""

from __future__ import annotations

import mmap
import os
import shutil
from pathlib import Path
from typing import Final

from rich.filesize import decimal as in_words

from holdfast.doctor.finding import Finding, advice, fault, ok
from holdfast.doctor.needs import HostNeeds
from holdfast.linux.host_memory import available

SHM: Final = Path("/dev/shm")  # noqa: S108  # where libraries make shared memory
_SHM_CHECK: Final = str(SHM)
SHM_BYTES: Final = 64 << 20
"""Memory that NCCL and DataLoaders of PyTorch need, per worker; the default of Docker for all."""
MARGIN: Final = 0.9
"""Most of the available memory that is taken, so that no other process is OOM-killed."""


def arena(size_bytes: int) -> Finding:
    """Check that shared memory of this size can be made, backed, mapped and written to."""
    free = available()
    if size_bytes > MARGIN * free.size_bytes:
        return fault(
            "shared memory",
            f"the workers share {in_words(size_bytes)}, and {in_words(free.size_bytes)} are "
            f"available of {free.limit}",
            "start fewer workers, set fewer shards, or give the job more memory",
        )
    try:
        _make(size_bytes)
    except OSError as error:
        return fault(
            "shared memory",
            f"{in_words(size_bytes)} of it cannot be made: {error.strerror or error}",
            "raise the limits of file sizes and addresses (ulimit -f, ulimit -v), or allow "
            "memfd_create and mmap",
        )
    return ok(
        "shared memory",
        f"{in_words(size_bytes)} made and mapped; {in_words(free.size_bytes)} are available of "
        f"{free.limit}",
    )


def asked(needs: HostNeeds) -> Finding:
    """Check that the memory that the job asks for is available."""
    free = available()
    found = f"{in_words(free.size_bytes)} available of {free.limit}"
    if needs.memory_bytes > free.size_bytes:
        return fault(
            "memory",
            f"{found}, and resources.memory asks for {in_words(needs.memory_bytes)} for "
            f"{needs.workers} workers",
            "start fewer workers on this host, lower resources.memory, or end other processes",
        )
    return ok("memory", found)


def dev_shm(needs: HostNeeds) -> Finding:
    """Check that libraries have space in /dev/shm; workers themselves use memory without a name."""
    wanted = SHM_BYTES * needs.workers
    uses_nccl = needs.job.has_process_groups and needs.job.device != "cpu"
    try:
        free = shutil.disk_usage(SHM).free
        probe = SHM / f"holdfast-{os.getpid()}"
        probe.write_bytes(bytes(mmap.PAGESIZE))
        probe.unlink()
        found = f"{in_words(free)} free in {SHM}"
    except OSError as error:
        free = 0
        found = f"{SHM} cannot be written to: {error.strerror}"
    if free >= wanted:
        return ok(_SHM_CHECK, found)
    remedy = (
        f"mount it with at least {in_words(wanted)} (mount -o remount,size=, or --shm-size in a "
        "container)"
    )
    if uses_nccl:
        return fault(_SHM_CHECK, f"{found}; NCCL passes data through it", remedy)
    return advice(_SHM_CHECK, f"{found}; your own DataLoaders pass samples through it", remedy)


def _make(size_bytes: int) -> None:
    fd = os.memfd_create("holdfast-doctor", os.MFD_CLOEXEC)
    try:
        os.posix_fallocate(fd, 0, size_bytes)
        with mmap.mmap(fd, size_bytes) as shared, mmap.mmap(fd, size_bytes) as again:
            last = size_bytes - 1
            shared[0] = 1
            shared[last] = 2
            if (again[0], again[last]) != (1, 2):
                raise OSError("what one mapping has written, another does not show")
    finally:
        os.close(fd)
