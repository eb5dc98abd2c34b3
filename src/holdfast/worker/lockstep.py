"""Lockstep: an evaluation whose forward passes all workers compute together, batch by batch.

Where a model is divided over the workers, a forward pass needs all of them. One that has measured
its batches repeats its newest one until the others are through, and does not count it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from holdfast.collectives.barrier_tags import WorkerTag
from holdfast.collectives.group import Group
from holdfast.worker.agent_link import StopRequested

B = TypeVar("B")

_HAS_BATCH: Final = 1
_STOPS: Final = 2


def in_lockstep(
    group: Group,
    step: int,
    batches: Iterator[B],
    any_batch: Callable[[], B],
    stops: Callable[[], bool],
) -> Iterator[tuple[B, bool]]:
    """Yield batches until no member has one: each with True if it counts.

    Args:
        group: The members.
        step: Steps committed so far.
        batches: Batches of this worker.
        any_batch: Gives some batch of any worker.
        stops: True if the run is to stop.

    Raises:
        Aborted: The generation is over.
        StopRequested: The run is to stop; all members leave at the same batch.
    """
    newest: B | None = None
    while True:
        own = next(batches, None)
        flags = _HAS_BATCH * (own is not None) + _STOPS * stops()
        seen = functools.reduce(operator.or_, group.barrier(WorkerTag.EVALUATION, step, flags))
        if seen & _STOPS:
            raise StopRequested
        if not seen & _HAS_BATCH:
            return
        newest = own or newest or any_batch()
        yield newest, own is not None
