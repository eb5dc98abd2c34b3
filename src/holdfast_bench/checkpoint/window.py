"""Window: the steps of a training loop that are measured, and what their saves cost. Pure.

A loop saves after every step whose number is a multiple of its period. The window begins and ends
in the middle between two saves, so it holds as much of the work for earlier saves as it leaves:

    step     1 … 10 … 15                20                25
    period 10     |    [- - - - - - - - -|- - - - - - - - -]      | a save   [ ] the window

Its time ends when its last save is finished, or after its last step if that is later.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

NEVER: Final = 0
"""The period of a loop that does not save."""
WARM_STEPS: Final = 10
"""Steps at the start of a process that are not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveSchedule:
    """The measured steps of a loop, and those after which it saves.

    Attributes:
        every: The period, steps, or NEVER.
        least_steps: The window is so many steps, or as many more as make whole periods.
    """

    every: int
    least_steps: int

    @property
    def newest_save(self) -> int:
        """The step of the newest save before the window; a loop without saves has one, too."""
        return -(-WARM_STEPS // self.every) * self.every if self.every else WARM_STEPS

    @property
    def first(self) -> int:
        """Steps before the window."""
        return self.newest_save + (self.every + 1) // 2

    @property
    def last(self) -> int:
        """The last step of the window."""
        periods = -(-self.least_steps // self.every) if self.every else 0
        return self.first + (periods * self.every or self.least_steps)

    def saves_after(self, step: int) -> bool:
        """True if a save is due after a step."""
        return self.every > 0 and step % self.every == 0

    @property
    def due(self) -> int:
        """Number of saves that are due in the window."""
        return sum(map(self.saves_after, range(self.first + 1, self.last + 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """One save of a loop.

    Attributes:
        step: Whose state it holds.
        taken_unix_s: When that step ended.
        finished_unix_s: When the save was durable; for a system that does not wait for the disk,
            when it returned.
        stall_s: How long the loop was held up; None if that is not known.
    """

    step: int
    taken_unix_s: float
    finished_unix_s: float
    stall_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Measurements of one loop.

    Attributes:
        schedule: What was to be done.
        began_unix_s: When the last step before the window ended.
        ended_unix_s: When its last step ended.
        saves: Those of the window, and those before that it may depend on, oldest first.
    """

    schedule: SaveSchedule
    began_unix_s: float
    ended_unix_s: float
    saves: tuple[Save, ...]

    @property
    def made(self) -> tuple[Save, ...]:
        """The saves of the window's own steps."""
        schedule = self.schedule
        return tuple(s for s in self.saves if schedule.first < s.step <= schedule.last)

    @property
    def finished_unix_s(self) -> float:
        """The time at which all of it was done."""
        return max([self.ended_unix_s, *(save.finished_unix_s for save in self.made)])

    @property
    def step_s(self) -> float:
        """Seconds per step, saves included."""
        steps = self.schedule.last - self.schedule.first
        return (self.finished_unix_s - self.began_unix_s) / steps

    @property
    def age_s(self) -> float:
        """The mean age of the newest finished save, which is what a crash at a random moment would
        lose; counted from when there is one, seconds.
        """
        area = 0.0
        counted_s = 0.0
        moments = [max(self.began_unix_s, save.finished_unix_s) for save in self.saves]
        for save, (since, until) in zip(
            self.saves, pairwise([*moments, self.finished_unix_s]), strict=True
        ):
            area += (until - since) * ((since + until) / 2 - save.taken_unix_s)
            counted_s += until - since
        return area / counted_s if counted_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Cost of the saves of one window.

    Attributes:
        overhead: How much longer a step takes than without saves, as a part of that.
        cost_s: The same for each save made, seconds.
        stall_s: How long the loop was held up by a save, mean, seconds.
        cpu_s: Processor time of the whole machine for each save made, seconds.
        age_s: See `Window.age_s`.
        made, due: Numbers of saves.
    """

    overhead: float
    cost_s: float
    stall_s: float
    cpu_s: float
    age_s: float
    made: int
    due: int


def figures(
    window: Window, without: Sequence[Window], cpu_s: Callable[[float, float], float]
) -> Figures:
    """Compare a window with those of the same loop without saves.

    Args:
        window: With at least one save.
        without: Windows without saves, from the same round.
        cpu_s: The processor time of the machine between two moments, Unix time, seconds.
    """
    num_steps = window.schedule.last - window.schedule.first
    made = window.made
    step_s = statistics.mean(each.step_s for each in without)
    used_s = cpu_s(window.began_unix_s, window.finished_unix_s)
    plain_s = statistics.mean(
        cpu_s(each.began_unix_s, each.finished_unix_s) / (each.schedule.last - each.schedule.first)
        for each in without
    )
    return Figures(
        overhead=window.step_s / step_s - 1,
        cost_s=num_steps * (window.step_s - step_s) / len(made),
        stall_s=statistics.mean(s.stall_s for s in made if s.stall_s is not None),
        cpu_s=(used_s - num_steps * plain_s) / len(made),
        age_s=window.age_s,
        made=len(made),
        due=window.schedule.due,
    )
