"""Agreement of a generation's members on the checkpoint that all of them load.

Members may see different checkpoints: hosts with disks of their own list different ones, and one
host may find damage that another does not. They agree through the values of barriers, in rounds:

    1. each member offers its newest remaining step; the lowest offer is the candidate
    2. a member that offered a newer step skips all newer ones, and all offer again
    3. if all offered the candidate, each loads and verifies it, and shows the digest of its state
    4. if all digests are equal, the members have agreed; else all skip it and offer again

All decide by the same values, so they reach the same barriers. Every round leaves some member with
fewer checkpoints, so the rounds end.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

NONE: Final = -1
"""The offer of a member without a checkpoint, and the digest of one that it cannot verify."""


@dataclass(frozen=True, slots=True)
class Skip:
    """Steps newer than the candidate: another member does not have them."""

    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Verify:
    """Load the checkpoint of this step, and bring the digest of its state to the next barrier."""

    step: int


@dataclass(frozen=True, slots=True)
class NothingLeft:
    """A member has no checkpoint left.

    Attributes:
        any_offered: Whether some member had one at first.
    """

    any_offered: bool


class Comparison(enum.Enum):
    """What the digests of a candidate show."""

    AGREED = enum.auto()
    UNVERIFIED = enum.auto()
    """Some member could not load or verify it."""
    DIFFERENT = enum.auto()
    """Members have verified different states of the same step."""


class RestoreAgreement:
    """One member's part in the agreement.

    Args:
        steps: The steps of the checkpoints that its host has.

    Attributes:
        skipped: Steps that were skipped, in order.
    """

    def __init__(self, steps: Iterable[int]) -> None:
        self._left = sorted(steps)
        self._any_offered = False
        self.skipped: list[int] = []

    @property
    def offer(self) -> int:
        """The value for the next barrier of offers."""
        return self._left[-1] if self._left else NONE

    def on_offers(self, offers: Sequence[int]) -> Skip | Verify | NothingLeft:
        """Decide by the offers of all members; after Skip they offer again."""
        candidate = min(offers)
        self._any_offered |= max(offers) != NONE
        if candidate == NONE:
            return NothingLeft(self._any_offered)
        if max(offers) > candidate:
            newer = [step for step in self._left[::-1] if step > candidate]
            return Skip(tuple(map(self._skip, newer)))
        return Verify(candidate)

    def on_digests(self, digests: Sequence[int]) -> Comparison:
        """Decide by the digests that all members have found for the candidate."""
        if NONE not in digests and len(set(digests)) == 1:
            return Comparison.AGREED
        self._skip(self.offer)
        return Comparison.UNVERIFIED if NONE in digests else Comparison.DIFFERENT

    def _skip(self, step: int) -> int:
        self._left.remove(step)
        self.skipped.append(step)
        return step
