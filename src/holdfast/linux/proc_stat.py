"""ProcStat: the state of a process in /proc; see proc_pid_stat(5)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


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
