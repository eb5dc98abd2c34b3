"""Eviction: how the members of a generation remove those whose results are wrong."""

from __future__ import annotations

from collections.abc import Collection
from typing import NoReturn

from holdfast.collectives.group import BarrierTag, Group
from holdfast.errors import HoldfastError


def evict(
    group: Group,
    wrong: Collection[int],
    error: HoldfastError,
    tag: BarrierTag,
    step: int,
) -> NoReturn:
    """Have the `wrong` ranks fail, and the others wait until the generation is over.

    Args:
        group: The members, which all have the same result.
        wrong: Some of them, one at least.
        error: Error with which a wrong rank fails.
        tag: Barrier at which the others wait.
        step: Steps committed.

    Raises:
        HoldfastError: `error`, if this worker is wrong.
        Aborted: The generation is over, because a wrong worker has left it.
    """
    if group.rank in wrong:
        raise error
    while True:
        group.barrier(tag, step)  # never complete: the wrong ranks do not come
