"""Group: the barriers and exchanges that connect the members of a generation.

The implementation is in `shared_memory`. It moves bytes and does not know what these mean: the
modules that use a group define their own barrier tags.
"""

from __future__ import annotations

import enum
from typing import Protocol, Self

from holdfast.collectives.network import Network
from holdfast.errors import JobError


class BarrierTag(enum.IntEnum):
    """Purpose of a barrier: the base of all tags.

    A tag's value is unique among the tags of a run.

    Attributes:
        doing: Activity of a worker that waits there, after "rank 2 is"; `{step}` stands for the
            steps committed and `{next}` for the step after those.
    """

    doing: str

    def __new__(cls, value: int, doing: str) -> Self:
        tag = int.__new__(cls, value)
        tag._value_ = value
        tag.doing = doing
        return tag


class Group(Protocol):
    """The members of one generation, seen by one of them."""

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that take part, in order."""
        ...

    @property
    def member_index(self) -> int:
        """The position of this worker among the members."""
        ...

    @property
    def local(self) -> tuple[int, ...]:
        """Members on this worker's host, in order."""
        ...

    @property
    def network(self) -> Network | None:
        """The connections to other hosts; None if there are none."""
        ...

    @property
    def rank(self) -> int:
        """This worker."""
        ...

    @property
    def generation(self) -> int:
        """The generation that this worker takes part in; 0 before its first one."""
        ...

    def barrier(self, tag: BarrierTag, step: int, value: int = 0) -> tuple[int, ...]:
        """Wait for all members; returns the value (63 bits) of each, in the order of `members`.

        Raises:
            Aborted: The generation is over.
            JobError: Another member is at a different barrier.
            HoldfastError: A member did not arrive within the job's `timeout_s`.
        """
        ...

    def local_barrier(self, tag: BarrierTag, step: int, value: int = 0) -> tuple[int, ...]:
        """Wait like `barrier`, for the members of this host only, in the order of `local`."""
        ...

    def gather(self, tag: BarrierTag, step: int, payload: bytes) -> tuple[bytes, ...]:
        """Wait like `barrier`, with a payload of up to 1 MiB in place of the value."""
        ...

    def check_abort(self) -> None:
        """Raises: Aborted: The generation is over."""
        ...


def agree(group: Group, tag: BarrierTag, step: int, value: int, problem: str) -> None:
    """Wait at a barrier to which all members must bring the same value.

    Raises:
        JobError: Two members have `problem`.
    """
    values = group.barrier(tag, step, value)
    # Every member compares with the first one, so all raise the same error.
    for rank, other in zip(group.members, values, strict=True):
        if other != values[0]:
            raise JobError(f"rank {group.members[0]} and rank {rank} have {problem}")
