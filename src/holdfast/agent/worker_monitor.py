"""Worker monitor: observes workers from outside, since a worker that hangs cannot say so."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from holdfast.arena.memory import Arena, Phase, Word
from holdfast.core.hangs import HangDetector, Observation, PhaseKind
from holdfast.linux.process import stat_of

SEARCH_S: Final = 1.0
"""Least interval of searches for processes that workers have started."""

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_ACTIVITIES: Final = {
    Phase.FORWARD: PhaseKind.USER,
    Phase.BACKWARD: PhaseKind.USER,
    Phase.COLLECT: PhaseKind.HOLDFAST,
    Phase.REDUCE: PhaseKind.HOLDFAST,
    Phase.OPTIMIZER: PhaseKind.HOLDFAST,
}


@dataclass(slots=True)
class _Account:
    """The processor time of a worker and of the processes that it has started, in ticks.

    Attributes:
        own: Used by itself, and by the children that it has waited for.
        others: Used by the other processes while they were observed.
        known: Used by each of these at the last observation, by process.
    """

    own: int = -1
    others: int = 0
    known: dict[int, int] = field(default_factory=dict)


class WorkerMonitor:
    """Observes the workers of an agent.

    Args:
        arena: Has their phases.
        idle_s: Time without processor time after which a worker hangs.
        together: True if no phases are known: the workers hang only if all of them are idle.
    """

    def __init__(self, arena: Arena, idle_s: float, *, together: bool) -> None:
        self._arena = arena
        self._hangs = HangDetector(idle_s, together=together)
        self._accounts: dict[int, _Account] = {}
        self._running: set[int] = set()
        self._search_at = 0.0

    def observe(self, workers: Mapping[int, int], now: float) -> dict[int, str]:
        """Observe workers.

        Args:
            workers: The rank of each by its process, which is a session of its own.
            now: Monotonic seconds.

        Returns:
            Why some hang, by process.
        """
        stats = {pid: stat for pid in workers if (stat := stat_of(pid))}
        self._running = {pid for pid, stat in stats.items() if not stat.is_stopped}
        accounts = {pid: self._accounts.get(pid, _Account()) for pid in stats}
        idle = [pid for pid, stat in stats.items() if stat.ticks == accounts[pid].own]
        for pid, stat in stats.items():
            accounts[pid].own = stat.ticks
        # Their other processes are searched for only if one is idle in user code: it is slow.
        if now >= self._search_at and any(self._at(workers[pid]) is PhaseKind.USER for pid in idle):
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
        """True if a worker could write its stacks when it was last observed."""
        return pid in self._running

    def _at(self, rank: int) -> PhaseKind:
        # User code measures a batch of an evaluation; by its phase the worker may only wait.
        if self._arena[rank, Word.MEASURING]:
            return PhaseKind.USER
        return _ACTIVITIES.get(Phase(self._arena[rank, Word.PHASE]), PhaseKind.WAITING)


def _count_others(accounts: Mapping[int, _Account]) -> None:
    """Add the time that the processes of workers have used since the last observation."""
    for leader, pids in _sessions(accounts).items():
        account = accounts[leader]
        ticks = {pid: stat.ticks for pid in pids if (stat := stat_of(pid))}
        account.others += sum(
            max(0, used - account.known.get(pid, used)) for pid, used in ticks.items()
        )
        account.known = ticks


def _sessions(leaders: Collection[int]) -> dict[int, list[int]]:
    """The other processes of each session, by its leader."""
    members: dict[int, list[int]] = {leader: [] for leader in leaders}
    for entry in Path("/proc").iterdir():
        with suppress(ValueError, OSError):  # not a process, or it has exited
            leader = os.getsid(pid := int(entry.name))
            if leader in members and pid != leader:
                members[leader].append(pid)
    return members
