"""A process of a run, held by a descriptor, so that no signal reaches one that got its number."""

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
"""By how much the wall clock may have been set forward since a process was logged."""


class Process:
    """One process, from when it is first known to when it is forgotten.

    Args:
        pid: Its number.
        pidfd: A descriptor of it; closed with this object.
    """

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid, self._pidfd = pid, pidfd
        weakref.finalize(self, os.close, pidfd)

    @classmethod
    def logged(cls, pid: int, time_unix_s: float) -> Process | None:
        """The process that was logged as started with number `pid`; None if it is gone.

        A later process with that number was started after the line was written.
        """
        try:
            found = cls(pid, os.pidfd_open(pid))
        except ProcessLookupError:
            return None
        stat = stat_of(pid)
        if stat is None or not found.is_alive:  # now what was read is of the same process
            return None
        booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        return found if booted + stat.start_s <= time_unix_s + CLOCK_SLACK_S else None

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        ended = select.poll()
        ended.register(self._pidfd, select.POLLIN)
        return not ended.poll(0)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it has not ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)
