"""Comparison: whether all members of a generation have the same replica, while the run goes on.

In every step each member digests the model's buffers and one slice of its replica, and brings the
result to a barrier of the reduction, before anything is updated. So the whole replica is covered
every NUM_SLICES steps; the buffers are covered in every step, because a commit averages them over
the workers and would spread a wrong value to all. Before a checkpoint, all of it is compared.

Of three or more members, the one that differs from the majority is wrong; of two, either may be.
What a bad replica has contributed since it went bad is in all replicas by now, so all members go
back to the newest checkpoint, which was compared as a whole before it was committed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NoReturn

from holdfast.arena.layout import ALIGNMENT
from holdfast.arena.replica import Replica
from holdfast.collectives.group import Group
from holdfast.core.digests import most_common
from holdfast.errors import ReplicaError
from holdfast.worker.barriers import WorkerTag
from holdfast.worker.checks.eviction import evict

NUM_SLICES: Final = 256
"""Steps in which all of a replica is compared."""

Compared = tuple[int, int, int]
"""The start and end of a range, bytes, and the steps after which it was last found equal."""


class ReplicaChecker:
    """One worker's part in every comparison.

    Args:
        replica: This worker's.
        group: The workers.
        step: Steps committed, when all replicas are known to be equal.

    Attributes:
        in_doubt: Whether replicas have been found to differ, so that this one, too, may hold what a
            wrong one has contributed.
    """

    def __init__(self, replica: Replica, group: Group, step: int) -> None:
        self._replica, self._group = replica, group
        size = replica.flat.numel()
        cuts = [size * at // NUM_SLICES // ALIGNMENT * ALIGNMENT for at in range(NUM_SLICES)]
        self._slices = list(zip(cuts, [*cuts[1:], size], strict=True))
        self._overwritten: list[tuple[int, int]] = []
        self.begin(step)

    def begin(self, step: int) -> None:
        """Note that all replicas are equal, because all have come from one, after `step` steps."""
        self._equal_at, self._always_equal_at = [step] * NUM_SLICES, step
        self.in_doubt = False

    def compare_always(self, names: Collection[str]) -> None:
        """Compare these tensors in every step from now on, the same ones on every member."""
        self._overwritten = self._replica.ranges_of(names)

    def digest(self, step: int) -> int:
        """What this worker brings to the comparison in `step`."""
        if len(self._group.members) == 1:
            return 0
        return self._replica.digest(*((start, end) for start, end, _ in self._compared_in(step)))

    def check(self, step: int, digests: Sequence[int]) -> None:
        """Compare what the members have brought in `step`.

        Args:
            step: Steps committed before it.
            digests: In the order of the members.

        Raises:
            Aborted: The generation is over, because another worker's replica differs perhaps.
            ReplicaError: The replicas differ, and this worker is to leave.
        """
        if len(set(digests)) > 1:
            self._blame(step, digests, self._compared_in(step), f"in step {step + 1}")
        self._equal_at[step % NUM_SLICES] = self._always_equal_at = step

    def check_all(self, step: int) -> None:
        """Compare whole replicas after `step` steps; as `check`."""
        whole = (0, self._replica.flat.numel(), min(self._equal_at))
        digests = self._group.barrier(WorkerTag.COMPARE, step, self._replica.digest())
        if len(set(digests)) > 1:
            self._blame(step, digests, [whole], f"after step {step}")
        self.begin(step)

    def _compared_in(self, step: int) -> list[Compared]:
        at = step % NUM_SLICES
        return [
            (*self._replica.buffer_range, self._always_equal_at),
            *((start, end, self._always_equal_at) for start, end in self._overwritten),
            (*self._slices[at], self._equal_at[at]),
        ]

    def _blame(
        self, step: int, digests: Sequence[int], ranges: Sequence[Compared], seen: str
    ) -> NoReturn:
        """Find out what differs and on whom, and have one worker tell; `seen` says when."""
        self.in_doubt = True
        group = self._group
        name, since = self._first_difference(step, ranges)
        since = min(group.barrier(WorkerTag.COMPARE, step, since))  # who has joined knows less
        found = dict(zip(group.members, digests, strict=True))
        common, is_majority = most_common(found)
        odd = [rank for rank, each in found.items() if each != common]
        usual = next(rank for rank in group.members if rank not in odd)
        most = "every other rank" if len(odd) == 1 else "most other ranks"
        others = most if is_majority else f"rank {usual}, one of which is wrong"
        error = ReplicaError(
            f"has another {name} than {others}: it was equal after step {since} and differs "
            f"{seen}. Either the memory of its host is bad, or the code changes the "
            "model outside the optimizer and session.on_commit"
        )
        evict(group, odd[:1], error, WorkerTag.COMPARE, step)  # one report is enough

    def _first_difference(self, step: int, ranges: Sequence[Compared]) -> tuple[str, int]:
        """The name of the first tensor that differs, found by bisection with all members, and the
        steps after which it was last found equal.
        """
        pieces = [
            (entry.name, max(entry.offset, start), min(-(-entry.end // 8) * 8, end), since)
            for start, end, since in ranges
            for entry in self._replica.entries_between(start, end)
        ]
        first, last = 0, len(pieces)
        while last - first > 1:
            middle = (first + last) // 2
            left = [(start, end) for _, start, end, _ in pieces[first:middle]]
            mine = self._replica.digest(*left)
            if len(set(self._group.barrier(WorkerTag.COMPARE, step, mine))) > 1:
                last = middle
            else:
                first = middle
        name, _, _, since = pieces[first]
        return name, since
