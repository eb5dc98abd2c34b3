"""Agreement: a barrier to which all members bring the same."""

from __future__ import annotations

from holdfast.collectives.group import BarrierTag, Group
from holdfast.errors import JobError


def agree(group: Group, tag: BarrierTag, step: int, value: int, problem: str) -> None:
    """Wait at a barrier to which all members must bring the same value.

    Raises:
        JobError: Two members have `problem`.
    """
    values = group.barrier(tag, step, value)
    for rank, other in zip(group.members, values, strict=True):
        if other != values[0]:
            raise JobError(f"rank {group.members[0]} and rank {rank} have {problem}")
