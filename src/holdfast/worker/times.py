"""Times: what the workers of a host have spent their time on, by phase."""

from __future__ import annotations

from holdfast.arena.memory import Arena, Phase


class Times:
    """Those that one worker tells of.

    Args:
        arena: Where all workers count their seconds.
        rank: This worker's.
    """

    def __init__(self, arena: Arena, rank: int) -> None:
        self._arena, self._rank = arena, rank
        self._before = arena.times(rank)

    def since_last(self) -> dict[str, float]:
        """What this worker has spent since this was last asked, seconds."""
        before, self._before = self._before, self._arena.times(self._rank)
        spent = {phase.name.lower(): now - before[phase] for phase, now in self._before.items()}
        return {name: round(seconds, 6) for name, seconds in spent.items() if seconds}

    def means(self) -> dict[str, float]:
        """What the workers have spent in this life of the run, seconds, their mean."""
        ranks = range(self._arena.world_size)
        times = [self._arena.times(rank) for rank in ranks]
        totals = {phase.name.lower(): sum(time[phase] for time in times) for phase in Phase}
        return {name: round(total / len(ranks), 4) for name, total in totals.items() if total}
