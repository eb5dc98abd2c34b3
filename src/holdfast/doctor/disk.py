"""Disk: the file system of the run directory, by writing to it as a run does."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich.filesize import decimal as in_words

from holdfast.doctor.clock import written_at
from holdfast.doctor.finding import Finding, advice, fault, ok
from holdfast.linux.files import replace_synced, sync_directory, write_synced

SAMPLE_BYTES: Final = 1 << 20
"""Size of what is written to see whether and how fast that works."""
SLOW_SYNC_S: Final = 0.5
"""A write of SAMPLE_BYTES that takes longer than this delays checkpoints."""
LEAST_BYTES: Final = 16 << 20
"""For logs, events and metrics."""
ELSEWHERE: Final = "fix that, or name a directory on another disk by --run"


def home_of(run_dir: Path) -> Path:
    """The directory that exists already and in which the run's directory would be made."""
    return next(each for each in run_dir.absolute().parents if each.is_dir())


@contextmanager
def scratch(run_dir: Path) -> Iterator[Path]:
    """A directory on the disk of the run, which is removed.

    Raises:
        OSError: There can be none.
    """
    with tempfile.TemporaryDirectory(
        prefix=".holdfast-doctor-", dir=home_of(run_dir), ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


def disk(run_dir: Path, checkpoint_bytes: int, keep: int) -> list[Finding]:
    """Check that a run can be written there.

    Args:
        run_dir: The directory of a run.
        checkpoint_bytes: Size of a checkpoint.
        keep: Checkpoints that are kept; while a new one is written there is one more.
    """
    home = home_of(run_dir)
    try:
        free = shutil.disk_usage(home).free
        with scratch(run_dir) as folder:
            seconds = _write(folder)
            written = written_at(folder / "sample")
            locks = _locks(folder / "lock")
    except OSError as error:
        return [fault("disk", f"{home} cannot be written to: {error.strerror}", ELSEWHERE)]
    return [
        _space(home, free, LEAST_BYTES + (keep + 1) * checkpoint_bytes),
        _speed(home, seconds),
        locks,
        written,
    ]


def _write(folder: Path) -> float:
    """Write a file as checkpoints are written; returns how long that took, seconds."""
    began = time.monotonic()
    write_synced(folder / "sample", [bytes(SAMPLE_BYTES)])
    replace_synced(folder / "replaced", b"before")
    replace_synced(folder / "replaced", b"after")
    sync_directory(folder)
    return time.monotonic() - began


def _space(home: Path, free: int, wanted: int) -> Finding:
    if free < wanted:
        return fault(
            "disk space",
            f"{in_words(free)} are free in {home}, and the run writes {in_words(wanted)}",
            "free space, set checkpoint.keep=1, or name a directory on another disk by --run",
        )
    return ok("disk space", f"{in_words(free)} free in {home}; the run writes {in_words(wanted)}")


def _speed(home: Path, seconds: float) -> Finding:
    found = f"1 MiB and two small files durable in {home} after {1e3 * seconds:.0f} ms"
    if seconds > SLOW_SYNC_S:
        return advice("disk", found, "raise checkpoint.every_steps, or name a faster disk by --run")
    return ok("disk", found)


def _locks(path: Path) -> Finding:
    """Check that a lock of one process keeps out others; some network file systems have none."""
    first, second = (os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600) for _ in range(2))
    try:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return ok("file locks", "one holder at a time (flock)")
    except OSError as error:
        return fault("file locks", f"none here: {error.strerror} (flock)", _LOCK_REMEDY)
    finally:
        os.close(first)
        os.close(second)
    return fault("file locks", "two holders at once (flock)", _LOCK_REMEDY)


_LOCK_REMEDY: Final = (
    "mount the file system with locks (NFS: local_lock=none; Lustre: flock), or name a directory "
    "on another disk by --run"
)
