"""Injections: what a storm orders single workers to suffer, through their words of the arena.

An order is a number that rises by one, and the step from which on it is due. The worker compares
the number with how many orders of that kind it has obeyed, notes that it obeys, and then does so:
whoever takes its place finds the order carried out.
"""

from __future__ import annotations

import enum
from typing import Final

from holdfast.arena.memory import LINE, Arena, Word, float_of, word_of

_ORDERED: Final = 0
_STEP: Final = 1
_SECONDS: Final = 2
_WORDS: Final = 3
"""Of an injection's part of the line."""


@enum.unique
class InProcessFault(enum.IntEnum):
    """What a worker may be asked to suffer."""

    EXIT = 0
    RAISE = 1
    SLOW = 2
    NAN = 3
    FLIP = 4
    DISK_FULL = 5
    CORRUPT = 6


assert Word.ACKNOWLEDGED + len(InProcessFault) <= LINE, "injections overflow a worker's line"
assert _WORDS * len(InProcessFault) <= LINE, "injections overflow their line"


class FaultRequests:
    """Those into one worker; it obeys the orders, one other process gives them.

    Args:
        arena: The host's shared memory.
        rank: The worker.
    """

    def __init__(self, arena: Arena, rank: int) -> None:
        self._arena, self._rank, self._line = arena, rank, arena.fault_requests(rank)

    def request(self, injection: InProcessFault, *, step: int, seconds: float) -> int:
        """Ask for something, where nothing like it is pending; returns the order's number.

        Args:
            injection: What.
            step: How many steps are to be committed first.
            seconds: How long it is to last, where it lasts.
        """
        at, number = _WORDS * injection, self.acknowledged(injection)[0] + 1
        self._line[at + _STEP], self._line[at + _SECONDS] = step, word_of(seconds)
        self._line[at + _ORDERED] = number  # last, for this is what the worker looks at
        return number

    def withdraw(self, injection: InProcessFault) -> None:
        """Ask for it no longer."""
        self._line[_WORDS * injection + _ORDERED] = self.acknowledged(injection)[0]

    def is_pending(self, injection: InProcessFault) -> bool:
        """Whether the worker still has to obey."""
        return self._line[_WORDS * injection + _ORDERED] > self.acknowledged(injection)[0]

    def is_due(self, injection: InProcessFault) -> bool:
        """Whether the worker has to obey now."""
        committed = self._arena[self._rank, Word.COMMITTED]
        due = self._line[_WORDS * injection + _STEP]
        return self.is_pending(injection) and committed >= due

    def acknowledge(self, injection: InProcessFault) -> float:
        """Note that this worker does what it was asked for; returns for how many seconds.

        It counts though the order is withdrawn just now.
        """
        number, step = self.acknowledged(injection)[0] + 1, self._arena[self._rank, Word.COMMITTED]
        self._arena[self._rank, Word.ACKNOWLEDGED + injection] = number << 32 | step
        return float_of(self._line[_WORDS * injection + _SECONDS])

    def acknowledged(self, injection: InProcessFault) -> tuple[int, int]:
        """How many orders of a kind the worker has obeyed, and after how many steps the last."""
        return divmod(self._arena[self._rank, Word.ACKNOWLEDGED + injection], 1 << 32)
