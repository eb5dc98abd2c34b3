"""A lock between processes that the kernel lets go of when its holder dies."""

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
"""Between two tries; flock(2) itself cannot be given a deadline."""


@contextmanager
def locked(path: Path, timeout_s: float) -> Iterator[None]:
    """Hold the lock file `path`, made where it is missing.

    Raises:
        JobError: Another process held it for `timeout_s`.
        OSError: It cannot be made.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        deadline = time.monotonic() + timeout_s
        while not _taken(fd):
            if time.monotonic() >= deadline:
                raise JobError(
                    f"another process has held {path} for {timeout_s:.0f} s; "
                    "wait until it is done, or end it"
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
