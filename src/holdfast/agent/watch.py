"""Watch: looks at workers from outside, for none of them could say that it hangs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from holdfast.arena.memory import Arena, Phase, Word
from holdfast.core.hangs import Activity, Sighting

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_ACTIVITIES: Final = {
    Phase.COMPUTE: Activity.USER,
    Phase.REDUCE: Activity.OWN,
    Phase.UPDATE: Activity.OWN,
}


def look_at(arena: Arena, rank: int, pid: int) -> Sighting | None:
    """How worker `rank`, process `pid`, is; None if it is gone. See proc_pid_stat(5)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    state, *fields = text.rpartition(")")[2].split()
    used = sum(map(int, fields[10:14]))  # by itself and by children that it has waited for
    return Sighting(
        activity=_ACTIVITIES.get(Phase(arena[rank, Word.PHASE]), Activity.WAITING),
        since=arena[rank, Word.PHASE_SINCE] / 1e9,
        cpu_s=used / _TICKS_PER_S,
        stopped=state == "T",
    )
