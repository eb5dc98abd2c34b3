"""Commit: what workers tell each other before a step counts, and what it comes to.

It is the same however the gradient is summed.

The vote of each worker travels with the reduction. So all see the votes of all before anything is
changed, and decide alike: whether their user states are equal, and what follows the step, such as a
checkpoint that a single worker was asked for.

A step counts once a worker has written its number into the arena. From then on all others must
commit it, too, also after a failure (`core.resume_point`). Where a device decides on the step, loss
and norm are known only later: they are a `PendingOutcome`.
"""

from __future__ import annotations

import enum
import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from holdfast.arena.memory import Word
from holdfast.arena.worker_status import WorkerStatus
from holdfast.collectives.group import Group
from holdfast.collectives.reduction import Reduced
from holdfast.collectives.slot import LOGGED, LOSS
from holdfast.core.balance.times import StepTimes
from holdfast.worker.step.gradient_norm import is_finite, not_finite


class RequestFlags(enum.IntFlag):
    """Requests to the run after a step. One that a single worker has seen applies to all."""

    NOTHING = 0
    STOP = 1
    SAVE = 2
    COMPARE = 4
    """Compare all replicas: those of a host have staged different states."""
    BUSY = 8
    """Not a request: a worker has no memory yet to stage a checkpoint."""
    SNAPSHOT = 16
    """Keep a snapshot in memory: the budget allows one again."""


# One for each of the flags above; the rest of a vote's word is the digest.
_REQUEST_BITS: Final = 5
_REQUEST_MASK: Final = (1 << _REQUEST_BITS) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitVote:
    """Message of a worker to the others before a commit.

    Attributes:
        requests: Requests to the run that it has seen.
        user_state: A digest of what its user code keeps; 56 bits.
        replica: A digest of part of its replica.
        times: Times that it has measured in the step.
    """

    requests: RequestFlags
    user_state: int
    replica: int
    times: StepTimes

    @property
    def value(self) -> int:
        """All of it but the digest of the replica, in one word."""
        return self.user_state << _REQUEST_BITS | self.requests


def check_user_states(group: Group, reduced: Reduced) -> None:
    """Raises: UserStatesDiffer: Members bring different user states to a commit."""
    # The vote is one word: digest of the user state, then the requests in the lowest bits.
    digests = [value >> _REQUEST_BITS for value in reduced.votes]
    for rank, each in zip(group.members, digests, strict=True):
        if each != digests[0]:
            raise UserStatesDiffer(group.members[0], rank)


class UserStatesDiffer(Exception):
    """User code keeps different values on two ranks.

    Args:
        first, other: The ranks.
    """

    def __init__(self, first: int, other: int) -> None:
        super().__init__(first, other)
        self.first = first
        self.other = other


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """Result of a step that counts.

    Attributes:
        loss: Mean over its samples.
        logged: Means of what was logged, by name.
        norm: The gradient's 2-norm before clipping.
        skipped: True if it was left out of the weights because its gradient is not finite.
    """

    loss: float
    logged: dict[str, float]
    norm: float
    skipped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingOutcome:
    """Outcome of a step that a device decides on, and that the host does not know yet.

    Attributes:
        step: Steps committed before it.
        names: Names of the logged values.
        stops: True if the run is to stop if the gradient is not finite.
    """

    step: int
    names: tuple[str, ...]
    stops: bool

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `dataclasses.asdict`, after a way through JSON."""
        return cls(step=values["step"], names=tuple(values["names"]), stops=values["stops"])

    def read(
        self, values: Sequence[float], norms: Callable[[], Mapping[str, float]]
    ) -> StepOutcome:
        """The outcome.

        Args:
            values: Means as in `Slot.stats`, then the norm; from the device.
            norms: Gives the norm of the gradient of each parameter, as far as these are known.

        Raises:
            NonFiniteError: The gradient is not finite, and the run is to stop.
        """
        *means, norm = values
        if self.stops and not is_finite(norm):
            raise not_finite(self.step, norms())
        logged = dict(zip(self.names, means[LOGGED:], strict=False))
        return StepOutcome(loss=means[LOSS], logged=logged, norm=norm, skipped=not is_finite(norm))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCommitted:
    """A step that counts.

    Attributes:
        step: Steps committed before it.
        outcome: Gives its outcome. It waits for the device that computes the step, and
            raises a NonFiniteError if the run is to stop there.
        pending: Facts known of the outcome if it needs a wait; else None.
        requests: Requests to the run that some worker has seen.
        times: Times that each member has measured.
    """

    step: int
    outcome: Callable[[], StepOutcome]
    pending: PendingOutcome | None = None
    requests: RequestFlags
    times: tuple[StepTimes, ...]


def requests_of(votes: Iterable[int]) -> RequestFlags:
    """The requests that some worker has seen."""
    return RequestFlags(functools.reduce(operator.or_, votes) & _REQUEST_MASK)


def commit_step(status: WorkerStatus, step: int, reduced: Reduced, norm: float) -> StepCommitted:
    """Commit `step`, whose gradient had this norm before clipping, and publish that."""
    # The count of steps comes last: a reader of it finds the loss of that step.
    status.loss = reduced.loss
    status[Word.COMMITTED] = step + 1
    outcome = StepOutcome(
        loss=reduced.loss, logged=reduced.logged, norm=norm, skipped=not is_finite(norm)
    )
    return StepCommitted(
        step=step,
        outcome=lambda: outcome,
        requests=requests_of(reduced.votes),
        times=reduced.step_times,
    )
