"""Rounds of a measurement: whether they agree on how long something takes. Pure.

Other processes can make a round slower, never faster, so the best rounds count. On a busy host even
these are slow, and all by the same factor at times. So a round counts only if the threads that
computed in it had a processor whenever they could use one, and a rate is reliable only if some of
the best of these rounds agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

AGREEING: Final = 3
"""How many of the best rounds must agree."""
TOLERANCE: Final = 0.1
"""By which fraction the slowest of these may take longer than the best."""
MAX_WAIT: Final = 0.05
"""How long threads may have waited for a processor in a round that counts, as a fraction of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round.

    Attributes:
        seconds: Duration.
        waited_s: Time that threads of this process waited for a processor meanwhile; their sum.
    """

    seconds: float
    waited_s: float

    @property
    def is_quiet(self) -> bool:
        """True if no other process has slowed it down much."""
        return self.waited_s <= MAX_WAIT * self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds that something takes, by some rounds.

    Attributes:
        seconds: The best round.
        is_reliable: True if the rounds agree.
    """

    seconds: float
    is_reliable: bool


def timing(rounds: Sequence[Round]) -> Timing:
    """The result of some rounds, at least one."""
    quiet = sorted(each.seconds for each in rounds if each.is_quiet)
    best = quiet[:AGREEING]
    if len(best) == AGREEING and best[-1] <= (1 + TOLERANCE) * best[0]:
        return Timing(seconds=best[0], is_reliable=True)
    return Timing(seconds=min(each.seconds for each in rounds), is_reliable=False)
