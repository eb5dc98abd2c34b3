"""A process, held by a pidfd, so that no signal reaches another one with the same number; and the
state of a process in /proc, see proc_pid_stat(5).
"""

from __future__ import annotations

import os
import select
import signal
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcStat:
    """The state of one process.

    Attributes:
        letter: The letter of its state.
        ticks: CPU time of the process and of children that it has waited for, clock ticks.
        start_s: Time of its start, seconds after boot.
    """

    letter: str
    ticks: int
    start_s: float

    @property
    def is_stopped(self) -> bool:
        """True if it is stopped by a signal (SIGSTOP)."""
        return self.letter == "T"

    @property
    def is_alive(self) -> bool:
        """True if it has not ended; a zombie has."""
        return self.letter not in "ZX"


def stat_of(pid: int) -> ProcStat | None:
    """The state of a process; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    letter, *fields = text.rpartition(")")[2].split()
    start_s = int(fields[18]) / os.sysconf("SC_CLK_TCK")
    return ProcStat(letter=letter, ticks=sum(map(int, fields[10:14])), start_s=start_s)
