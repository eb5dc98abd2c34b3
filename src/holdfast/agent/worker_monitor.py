"""Watch: looks at workers from outside, for none of them could say that it hangs."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from holdfast.arena.memory import Arena, Phase, Word
from holdfast.core.hangs import HangDetector, Observation, PhaseKind
from holdfast.job.spec import Job
from holdfast.linux.proc_stat import stat_of

SEARCH_S: Final = 1.0
"""How often at most it is looked for what workers have started."""

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_ACTIVITIES: Final = {
    Phase.COMPUTE: PhaseKind.USER,
    Phase.REDUCE: PhaseKind.HOLDFAST,
    Phase.UPDATE: PhaseKind.HOLDFAST,
}


@dataclass(slots=True)
class _Account:
    """The processor time of a worker and of what it has started, in ticks.

    Attributes:
        own: What it has used itself, and what the children had that it has waited for.
        others: What the others have used while it was seen.
        known: What each of these had used then, by process.
    """

    own: int = -1
    others: int = 0
    known: dict[int, int] = field(default_factory=dict)


class WorkerMonitor:
    """Over an agent's workers.

    Args:
        job: What they do.
        arena: Says what they are at.
    """

    def __init__(self, job: Job, arena: Arena) -> None:
        self._arena = arena
        self._hangs = HangDetector(job.hang_timeout_s, together=not job.records_progress)
        self._accounts: dict[int, _Account] = {}
        self._running: set[int] = set()
        self._search_at = 0.0

    def look(self, workers: Mapping[int, int], now: float) -> dict[int, str]:
        """Look at workers.

        Args:
            workers: The rank of each by its process, which is a session of its own.
            now: Monotonic seconds.

        Returns:
            Why some are held to hang, by process.
        """
        stats = {pid: stat for pid in workers if (stat := stat_of(pid))}
        self._running = {pid for pid, stat in stats.items() if not stat.is_stopped}
        accounts = {pid: self._accounts.get(pid, _Account()) for pid in stats}
        still = [pid for pid, stat in stats.items() if stat.ticks == accounts[pid].own]
        for pid, stat in stats.items():
            accounts[pid].own = stat.ticks
        if now >= self._search_at and any(
            self._at(workers[pid]) is PhaseKind.USER for pid in still
        ):
            self._search_at = now + SEARCH_S
            _count_others(accounts)
        self._accounts = accounts
        return self._hangs.see(
            {
                pid: Observation(
                    phase_kind=self._at(workers[pid]),
                    since=self._arena[workers[pid], Word.PHASE_SINCE] / 1e9,
                    cpu_s=(stat.ticks + accounts[pid].others) / _TICKS_PER_S,
                    stopped=stat.is_stopped,
                )
                for pid, stat in stats.items()
            },
            now,
        )

    def can_answer(self, pid: int) -> bool:
        """Whether a worker could say where it stands when it was last looked at."""
        return pid in self._running

    def _at(self, rank: int) -> PhaseKind:
        return _ACTIVITIES.get(Phase(self._arena[rank, Word.PHASE]), PhaseKind.WAITING)


def _count_others(accounts: Mapping[int, _Account]) -> None:
    """Add what the processes that workers have started have used since the last time."""
    for leader, pids in _sessions(accounts).items():
        account = accounts[leader]
        found = {pid: stat.ticks for pid in pids if (stat := stat_of(pid))}
        account.others += sum(
            max(0, used - account.known.get(pid, used)) for pid, used in found.items()
        )
        account.known = found


def _sessions(leaders: Collection[int]) -> dict[int, list[int]]:
    """The other processes of sessions."""
    members: dict[int, list[int]] = {leader: [] for leader in leaders}
    for entry in Path("/proc").iterdir():
        with suppress(ValueError, OSError):  # it is no process, or is gone
            leader = os.getsid(pid := int(entry.name))
            if leader in members and pid != leader:
                members[leader].append(pid)
    return members
