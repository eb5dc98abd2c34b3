"""Fault requests: the faults that a fault injector asks single workers to inject into themselves.

A request is a number that rises by one, and the step from which on it is due. The worker compares
the number with how many requests of that kind it has acknowledged, acknowledges, and then injects
the fault. So the worker that replaces it finds the request fulfilled.
"""

from __future__ import annotations

import enum
from typing import Final

from holdfast.arena.memory import LINE, Arena, Word, float_of, word_of

_NUMBER: Final = 0
_STEP: Final = 1
_SECONDS: Final = 2
_WORDS: Final = 3
"""Words per fault in a line of fault requests."""


@enum.unique
class InProcessFault(enum.IntEnum):
    """Faults that a worker injects into itself."""

    EXIT = 0
    RAISE = 1
    SLOW = 2
    NAN = 3
    FLIP = 4
    DISK_FULL = 5
    CORRUPT = 6


assert Word.ACKNOWLEDGED + len(InProcessFault) <= Word.ROUNDS, "acknowledgements overflow"
assert _WORDS * len(InProcessFault) <= LINE, "fault requests overflow their line"


class FaultRequests:
    """The fault requests of one worker. A fault injector writes them, the worker acknowledges them.

    Args:
        arena: The host's shared memory.
        rank: The worker.
    """

    def __init__(self, arena: Arena, rank: int) -> None:
        self._status = arena.line(rank)
        self._line = arena.fault_requests(rank)

    def request(self, fault: InProcessFault, *, step: int, seconds: float) -> int:
        """Request a fault of which none is pending; returns the number of the request.

        Args:
            fault: The kind of fault.
            step: Steps to commit first.
            seconds: Duration of the fault, if it lasts.
        """
        first = _WORDS * fault
        number = self.acknowledged(fault)[0] + 1
        self._line[first + _STEP] = step
        self._line[first + _SECONDS] = word_of(seconds)
        self._line[first + _NUMBER] = number  # last, because the worker reads it first
        return number

    def withdraw(self, fault: InProcessFault) -> None:
        """Withdraw a pending request."""
        self._line[_WORDS * fault + _NUMBER] = self.acknowledged(fault)[0]

    def is_pending(self, fault: InProcessFault) -> bool:
        """True if there is a request that the worker has not acknowledged."""
        return self._line[_WORDS * fault + _NUMBER] > self.acknowledged(fault)[0]

    def is_due(self, fault: InProcessFault) -> bool:
        """True if there is one, and enough steps are committed."""
        committed = self._status[Word.COMMITTED]
        return self.is_pending(fault) and committed >= self._line[_WORDS * fault + _STEP]

    def acknowledge(self, fault: InProcessFault) -> float:
        """Note that this worker injects the fault; returns for how many seconds.

        It counts even if the request is withdrawn at this moment.
        """
        number = self.acknowledged(fault)[0] + 1
        step = self._status[Word.COMMITTED]
        # One word, so that no reader pairs the count with the step of another request.
        self._status[Word.ACKNOWLEDGED + fault] = number << 32 | step
        return float_of(self._line[_WORDS * fault + _SECONDS])

    def acknowledged(self, fault: InProcessFault) -> tuple[int, int]:
        """Count of requests that the worker has acknowledged, and the step of the last one."""
        return divmod(self._status[Word.ACKNOWLEDGED + fault], 1 << 32)
