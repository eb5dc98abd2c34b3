"""Times: how long the workers of a host were in each phase."""

from __future__ import annotations

from holdfast.arena.memory import Arena, Phase
from holdfast.arena.worker_status import WorkerStatus


class Times:
    """The times that one worker reports.

    Args:
        arena: Memory in which all workers count their seconds.
        rank: This worker's.
    """

    def __init__(self, arena: Arena, rank: int) -> None:
        self._statuses = [WorkerStatus(arena, each) for each in range(arena.world_size)]
        self._own = self._statuses[rank]
        self._before = self._own.times()

    def since_last(self) -> dict[str, float]:
        """The times of this worker since the last call, seconds."""
        before = self._before
        self._before = self._own.times()
        spent = {phase.name.lower(): now - before[phase] for phase, now in self._before.items()}
        return {name: round(seconds, 6) for name, seconds in spent.items() if seconds}

    def means(self) -> dict[str, float]:
        """Mean times of the workers since this attempt started, seconds."""
        times = [status.times() for status in self._statuses]
        totals = {phase.name.lower(): sum(time[phase] for time in times) for phase in Phase}
        return {name: round(total / len(times), 4) for name, total in totals.items() if total}
