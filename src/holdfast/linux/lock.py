"""A lock between processes, which the kernel releases when its holder dies."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from holdfast.errors import JobError

_NAP_S: Final = 0.05
"""Time between two attempts; flock(2) itself has no timeout."""


@contextmanager
def locked(path: Path, timeout_s: float) -> Iterator[None]:
    """Hold a lock on the file `path`, which is created if it is missing.

    Raises:
        JobError: Another process held the lock for `timeout_s`.
        OSError: The file cannot be created.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        deadline = time.monotonic() + timeout_s
        while not _taken(fd):
            if time.monotonic() >= deadline:
                raise JobError(
                    f"another process has held {path} for {timeout_s:.0f} s; "
                    "wait until it has ended, or kill it"
                )
            time.sleep(_NAP_S)
        yield
    finally:
        os.close(fd)


def _taken(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
