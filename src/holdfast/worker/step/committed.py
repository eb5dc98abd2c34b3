"""What a step that counts has to say, whichever way its gradient was summed."""

from __future__ import annotations

import enum
import functools
import operator
from dataclasses import dataclass
from typing import Final

from holdfast.arena.memory import Word
from holdfast.arena.worker_status import WorkerStatus
from holdfast.collectives.exact import Reduced
from holdfast.collectives.group import Group
from holdfast.worker.step.finite import is_finite


class RequestFlags(enum.IntFlag):
    """What the run was asked to do after a step. What one worker has seen by then holds for all."""

    NOTHING = 0
    STOP = 1
    SAVE = 2


_ASKED_BITS: Final = 2
_ASKED_MASK: Final = (1 << _ASKED_BITS) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitVote:
    """What a worker tells the others when it comes to a commit.

    Attributes:
        asked: What it has seen that the run is asked for.
        user_state: A digest of what its user code keeps; 56 bits.
        replica: A digest of part of its replica.
    """

    requests: RequestFlags
    user_state: int
    replica: int

    @property
    def value(self) -> int:
        """All of it but the digest of the replica, in a word."""
        return self.user_state << _ASKED_BITS | self.requests


def check_user_states(group: Group, reduced: Reduced) -> None:
    """Raises: UserStatesDiffer: Members have come to a commit with different user states."""
    digests = [value >> _ASKED_BITS for value in reduced.values]
    for rank, each in zip(group.members, digests, strict=True):
        if each != digests[0]:
            raise UserStatesDiffer(group.members[0], rank)


class UserStatesDiffer(Exception):
    """What user code keeps is not the same on two ranks.

    Args:
        first, other: Which.
    """

    def __init__(self, first: int, other: int) -> None:
        super().__init__(first, other)
        self.first, self.other = first, other


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A step that counts.

    Attributes:
        loss: Mean over its samples.
        logged: Means of what was logged, by name.
        norm: The gradient's 2-norm before clipping.
        skipped: Whether it was left out of the weights, its gradient not being finite.
        asked: What some worker has seen that the run is asked for.
    """

    step: int
    loss: float
    logged: dict[str, float]
    norm: float
    skipped: bool
    requests: RequestFlags


def commit_step(status: WorkerStatus, step: int, reduced: Reduced, norm: float) -> Committed:
    """Commit `step`, whose gradient had this norm before clipping: tell whoever watches."""
    status.loss, status[Word.COMMITTED] = reduced.loss, step + 1
    return Committed(
        step=step,
        loss=reduced.loss,
        logged=reduced.logged,
        norm=norm,
        skipped=not is_finite(norm),
        requests=RequestFlags(functools.reduce(operator.or_, reduced.values) & _ASKED_MASK),
    )
