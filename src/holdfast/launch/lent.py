"""Lent: a process that a fork server has forked for another process."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from typing import Final

REAP_TIMEOUT_S: Final = 5.0
"""How long a fork server may take to report the exit status of a process that has ended."""


class LentProcess:
    """A child of a fork server, as its user sees it; see `launch.child.Process`.

    Args:
        pid: Its process id.
        pidfd: Readable once it has ended; the caller closes it.
        status: A pipe that the fork server writes the exit status to, and that ends with the fork
            server.

    Attributes:
        ended_with_server: True if it was killed because the fork server has ended.
    """

    def __init__(self, pid: int, pidfd: int, status: int) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self._pipe = status
        self._status: int | None = None
        self.ended_with_server = False

    def poll(self) -> int | None:
        """Its exit status once it has ended; the negative number of a signal that killed it."""
        if self._status is None and _is_readable(self.pidfd, 0):
            written = os.read(self._pipe, 16) if _is_readable(self._pipe, REAP_TIMEOUT_S) else b""
            os.close(self._pipe)
            # A fork server that has died takes its forks with it, and cannot say so.
            self.ended_with_server = not written
            self._status = int(written or -signal.SIGKILL)
        return self._status

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        if self._status is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)


def _is_readable(fd: int, timeout_s: float) -> bool:
    source = select.poll()
    source.register(fd, select.POLLIN)
    return bool(source.poll(1000 * timeout_s))
