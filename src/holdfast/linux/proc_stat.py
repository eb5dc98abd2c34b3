"""ProcStat: what the kernel says of a process in /proc; see proc_pid_stat(5)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcStat:
    """A process's.

    Attributes:
        letter: Its state.
        ticks: Processor time that it has used, and that children had that it has waited for.
        start_s: When it was started, seconds after the machine.
    """

    letter: str
    ticks: int
    start_s: float

    @property
    def is_stopped(self) -> bool:
        """Whether it stands still because of a signal (SIGSTOP)."""
        return self.letter == "T"

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended, waited for or not."""
        return self.letter not in "ZX"


def stat_of(pid: int) -> ProcStat | None:
    """That of a process; None if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    letter, *fields = text.rpartition(")")[2].split()
    start_s = int(fields[18]) / os.sysconf("SC_CLK_TCK")
    return ProcStat(letter=letter, ticks=sum(map(int, fields[10:14])), start_s=start_s)
