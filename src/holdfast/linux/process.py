"""A process, held by a pidfd, so that no signal reaches another one with the same number."""

from __future__ import annotations

import os
import select
import signal
import time
import weakref
from contextlib import suppress
from typing import Final

from holdfast.linux.proc_stat import stat_of

CLOCK_SLACK_S: Final = 1.0
"""Most that the wall clock may have been set forward since a process was logged."""


class Process:
    """One process.

    Args:
        pid: Its process id.
        pidfd: A descriptor of it; closed with this object.
    """

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self._pidfd = pidfd
        weakref.finalize(self, os.close, pidfd)

    @classmethod
    def logged(cls, pid: int, time_unix_s: float) -> Process | None:
        """The process that was logged as started with `pid`; None if it has ended.

        A later process with the same number was started after `time_unix_s`.
        """
        try:
            process = cls(pid, os.pidfd_open(pid))
        except ProcessLookupError:
            return None
        stat = stat_of(pid)
        if stat is None or not process.is_alive:  # so what was read is of this process
            return None
        booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        return process if booted + stat.start_s <= time_unix_s + CLOCK_SLACK_S else None

    @property
    def is_alive(self) -> bool:
        """True if it has not ended."""
        ended = select.poll()
        ended.register(self._pidfd, select.POLLIN)
        return not ended.poll(0)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it has not ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)
