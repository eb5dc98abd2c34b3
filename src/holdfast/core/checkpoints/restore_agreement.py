"""Agreement of a generation's members on the checkpoint that they resume from.

Every host has a disk of its own, so members see different checkpoints: a host may be new, and one
host may find damage that another does not. They agree through the values of barriers, in rounds:

    1. each member offers its newest remaining step; the newest offer is the candidate
    2. each member that has the candidate loads and verifies it, and shows the digest of its state
    3. if some have verified it, and found the same state, the members have agreed: the others
       receive that state; else all skip the candidate and offer again

All decide by the same values, so they reach the same barriers. Every round leaves some member with
fewer checkpoints, so the rounds end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

NONE: Final = -1
"""The offer of a member without a checkpoint, and the digest of one that has not verified it."""


@dataclass(frozen=True, slots=True)
class VerifyCandidate:
    """Bring the digest of a checkpoint's state to the next barrier.

    Attributes:
        step: Its step.
        is_held: True if this member has it.
    """

    step: int
    is_held: bool


@dataclass(frozen=True, slots=True)
class NothingLeft:
    """No member has a checkpoint left.

    Attributes:
        any_offered: True if some member had one at first.
    """

    any_offered: bool


@dataclass(frozen=True, slots=True)
class Agreed:
    """The members resume from the candidate.

    Attributes:
        verified: The positions of the members that have its state.
    """

    verified: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Skipped:
    """No member resumes from the candidate.

    Attributes:
        is_different: True if members have verified different states of it; else none has.
    """

    is_different: bool


def whole_on(
    hosts: Iterable[Collection[int]], members: Sequence[int], digests: Sequence[int]
) -> tuple[int, ...]:
    """The digests of members that read a checkpoint in shares: NONE for all members of a host of
    which one has not verified its share.

    Args:
        hosts: The members of each host.
        members: All of them, by rank.
        digests: Digest of each, in that order.
    """
    # Without one share a host lacks the state, however well the others were read.
    failed = {rank for rank, digest in zip(members, digests, strict=True) if digest == NONE}
    lost = {rank for ranks in hosts if failed & set(ranks) for rank in ranks}
    by_rank = zip(members, digests, strict=True)
    return tuple(NONE if rank in lost else digest for rank, digest in by_rank)


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
        self._candidate = NONE
        self.skipped: list[int] = []

    @property
    def offer(self) -> int:
        """The value for the next barrier of offers."""
        return self._left[-1] if self._left else NONE

    def on_offers(self, offers: Sequence[int]) -> VerifyCandidate | NothingLeft:
        """Decide by the offers of all members."""
        # The newest first: it loses the least work.
        self._candidate = max(offers)
        if self._candidate == NONE:
            return NothingLeft(self._any_offered)
        self._any_offered = True
        return VerifyCandidate(self._candidate, is_held=self.offer == self._candidate)

    def on_digests(self, digests: Sequence[int]) -> Agreed | Skipped:
        """Decide by the digests of all members; after `Skipped` they offer again."""
        verified = tuple(index for index, digest in enumerate(digests) if digest != NONE)
        # Different digests mean that a checkpoint is not what was saved; it is not known which.
        if len({digests[index] for index in verified}) == 1:
            return Agreed(verified)
        if self.offer == self._candidate:
            self.skipped.append(self._left.pop())
        return Skipped(is_different=bool(verified))
