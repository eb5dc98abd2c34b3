"""Replica checker: compares the replicas of all members during a run.

In every step each member digests the model's buffers and one slice of its replica, and brings the
result to a barrier of the reduction, before anything is updated. The whole replica is covered every
NUM_SLICES steps; the buffers are covered in every step, because a commit averages them over the
workers and would spread a wrong value to all. Before a checkpoint the whole replica is compared.

Of three or more members, the one that differs from the majority is wrong; of two, either may be.
Its gradients since then are in all replicas by now, so all members are restarted from the newest
checkpoint, which was compared as a whole before it was committed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NoReturn

from holdfast.arena.layout import ALIGNMENT, aligned
from holdfast.arena.memory import float_of, word_of
from holdfast.arena.replica import Replica
from holdfast.collectives.barrier_tags import WorkerTag
from holdfast.collectives.group import Group
from holdfast.core.step.verification import most_common
from holdfast.errors import ReplicaError
from holdfast.worker.checks.eviction import evict

NUM_SLICES: Final = 256
"""Steps in which all of a replica is compared."""

Compared = tuple[int, int, int]
"""The start and end of a range, bytes, and the step after which it was last equal."""


class ReplicaChecker:
    """Compares the replica of one worker with those of the other members, if each holds all of the
    state.

    Args:
        replica: Replica of this worker.
        group: The members.
        step: Steps committed, after which all replicas are equal.

    Attributes:
        in_doubt: True if replicas differ, so that this one may contain gradients of a wrong one.
        tolerates: True if the members may compute other bits, so that a difference is only noted.
        differ: True if such a difference was noted in this generation, since the newest `begin`.
    """

    def __init__(self, replica: Replica, group: Group, step: int) -> None:
        self._replica = replica
        self._group = group
        size = replica.flat.numel()
        cuts = [size * at // NUM_SLICES // ALIGNMENT * ALIGNMENT for at in range(NUM_SLICES)]
        self._slices = list(zip(cuts, [*cuts[1:], size], strict=True))
        self._overwritten: list[tuple[int, int]] = []
        self.tolerates = False
        self.begin(step)

    def begin_generation(self, *, tolerates: bool) -> None:
        """Set what happens if replicas differ; nothing is noted yet, on any member."""
        self.tolerates = tolerates
        self.differ = False

    def begin(self, step: int) -> None:
        """Note that all replicas are equal after `step` steps, because all come from one."""
        self._equal_at = [step] * NUM_SLICES
        self._always_equal_at = step
        self.in_doubt = self.differ = False

    def compare_always(self, names: Collection[str]) -> None:
        """Compare these tensors in every step from now on, the same ones on every member."""
        self._overwritten = self._replica.ranges_of(names)

    def digest(self, step: int) -> int:
        """The digest of this worker for the comparison in `step`."""
        if not self._compares:
            return 0
        return self._replica.digest(*((start, end) for start, end, _ in self._compared_in(step)))

    def check(self, step: int, digests: Sequence[int]) -> None:
        """Compare the digests of all members in `step`.

        Args:
            step: Steps committed before it.
            digests: In the order of the members.

        Raises:
            Aborted: The generation is over, for example because another replica differs.
            ReplicaError: The replicas differ, and this worker leaves.
        """
        # All members have the same digests before them, so all go the same way from here.
        if len(set(digests)) > 1:
            self._on_difference(step, digests, self._compared_in(step), f"step {step + 1}")
            return
        # Equal before the update of this step: a flip is dated by these numbers.
        self._equal_at[step % NUM_SLICES] = self._always_equal_at = step

    def check_all(self, step: int) -> None:
        """Compare whole replicas after `step` steps; as `check`."""
        if not self._replica.holding.is_all:
            self.begin(step)
            return
        whole = (0, self._replica.flat.numel(), min(self._equal_at))
        digests = self._group.barrier(WorkerTag.COMPARE, step, self._replica.digest())
        if len(set(digests)) > 1:
            self._on_difference(step, digests, [whole], f"after step {step}")
            return
        self.begin(step)

    def common_norm(self, step: int, norm: float) -> float:
        """The norm of a gradient by which all members clip and decide: this worker's, or that of
        the first one where they may compute other bits.

        Raises:
            Aborted: The generation is over.
        """
        if not self.tolerates:
            return norm
        return float_of(self._group.barrier(WorkerTag.NORM, step, word_of(abs(norm)))[0])

    @property
    def _compares(self) -> bool:
        """True if other members have the same replica."""
        return len(self._group.members) > 1 and self._replica.holding.is_all

    def _compared_in(self, step: int) -> list[Compared]:
        at = step % NUM_SLICES
        return [
            (*self._replica.buffer_range, self._always_equal_at),
            *((start, end, self._always_equal_at) for start, end in self._overwritten),
            (*self._slices[at], self._equal_at[at]),
        ]

    def _on_difference(
        self, step: int, digests: Sequence[int], ranges: Sequence[Compared], detected: str
    ) -> None:
        if not self.tolerates:
            self._report(step, digests, ranges, detected)
        self.differ = True

    def _report(
        self, step: int, digests: Sequence[int], ranges: Sequence[Compared], detected: str
    ) -> NoReturn:
        """Find out what differs and on which rank, and have one worker report it.

        Args:
            step: Steps committed.
            digests: In the order of the members.
            ranges: Ranges that the digests cover.
            detected: Moment at which the difference was detected, in words.
        """
        self.in_doubt = True
        group = self._group
        name, since = self._first_difference(step, ranges)
        # A worker that joined later knows of fewer comparisons.
        since = min(group.barrier(WorkerTag.COMPARE, step, since))
        by_rank = dict(zip(group.members, digests, strict=True))
        # Of two replicas either may be the wrong one; then the error says so.
        common, is_majority = most_common(by_rank)
        odd = [rank for rank, each in by_rank.items() if each != common]
        usual = next(rank for rank in group.members if rank not in odd)
        most = "all other replicas" if len(odd) == 1 else "most other replicas"
        others = most if is_majority else f"the replica of rank {usual}; one of the two is wrong"
        error = ReplicaError(
            f"has a tensor {name} that differs from {others} (last equal: step {since}, detected: "
            f"{detected}). Either the memory of its host is faulty, or the code changes the model "
            "outside the optimizer and session.on_commit"
        )
        evict(group, odd[:1], error, WorkerTag.COMPARE, step)  # one report is enough

    def _first_difference(self, step: int, ranges: Sequence[Compared]) -> tuple[str, int]:
        """The name of the first tensor that differs, found by bisection with all members, and the
        step after which it was last equal.
        """
        pieces = [
            (entry.name, max(entry.offset, start), min(aligned(entry.end), end), since)
            for start, end, since in ranges
            for entry in self._replica.entries_between(start, end)
        ]
        first = 0
        last = len(pieces)
        while last - first > 1:
            # Invariant: the first difference is in pieces[first:last]. Each round is a barrier of
            # all members.
            middle = (first + last) // 2
            left = [(start, end) for _, start, end, _ in pieces[first:middle]]
            mine = self._replica.digest(*left)
            if len(set(self._group.barrier(WorkerTag.COMPARE, step, mine))) > 1:
                last = middle
            else:
                first = middle
        name, _, _, since = pieces[first]
        return name, since
