"""Orders: what a storm asks of single workers, through their words of the arena.

An order is a number that rises by one, and the step from which on it is due. The worker compares
the number with how many orders of that kind it has obeyed, notes that it obeys, and then does so:
whoever takes its place finds the order carried out.
"""

from __future__ import annotations

import enum
from typing import Final

from holdfast.arena.memory import Arena, Word, float_of, word_of

_GIVEN: Final = 0
_STEP: Final = 1
_SECONDS: Final = 2
_WORDS: Final = 3
"""Of an order's part of the line."""


@enum.unique
class Order(enum.IntEnum):
    """What a worker may be asked to suffer."""

    EXIT = 0
    RAISE = 1
    SLOW = 2
    NAN = 3
    FLIP = 4
    DISK_FULL = 5


class Orders:
    """Those to one worker; it obeys them, one other process gives them.

    Args:
        arena: The host's shared memory.
        rank: The worker.
    """

    def __init__(self, arena: Arena, rank: int) -> None:
        self._arena, self._rank, self._line = arena, rank, arena.orders(rank)

    def give(self, order: Order, *, step: int, seconds: float) -> int:
        """Ask for something, where nothing like it is pending; returns the order's number.

        Args:
            order: What.
            step: How many steps are to be committed first.
            seconds: How long it is to last, where it lasts.
        """
        at, number = _WORDS * order, self.obeyed(order)[0] + 1
        self._line[at + _STEP], self._line[at + _SECONDS] = step, word_of(seconds)
        self._line[at + _GIVEN] = number  # last, for this is what the worker looks at
        return number

    def withdraw(self, order: Order) -> None:
        """Ask for it no longer."""
        self._line[_WORDS * order + _GIVEN] = self.obeyed(order)[0]

    def is_pending(self, order: Order) -> bool:
        """Whether the worker still has to obey."""
        return self._line[_WORDS * order + _GIVEN] > self.obeyed(order)[0]

    def is_due(self, order: Order) -> bool:
        """Whether the worker has to obey now."""
        committed = self._arena[self._rank, Word.COMMITTED]
        return self.is_pending(order) and committed >= self._line[_WORDS * order + _STEP]

    def obey(self, order: Order) -> float:
        """Note that this worker does what it was asked for; returns for how many seconds.

        It counts though the order is withdrawn just now.
        """
        number, step = self.obeyed(order)[0] + 1, self._arena[self._rank, Word.COMMITTED]
        self._arena[self._rank, Word.OBEYED + order] = number << 32 | step
        return float_of(self._line[_WORDS * order + _SECONDS])

    def obeyed(self, order: Order) -> tuple[int, int]:
        """How many orders of a kind the worker has obeyed, and after how many steps the last."""
        return divmod(self._arena[self._rank, Word.OBEYED + order], 1 << 32)
