"""Verification: some shards are computed a second time, by another worker, before the step commits.

    owner      computes its shard, publishes a digest ─────────┐
    verifier   computes the same shard, keeps its digest ──────┤
    all        compare after the reduction ─▶ the same: commit │
                                            └▶ else all compute it once more and tell who is wrong

It finds what no check for NaN sees: a processor that computes other bits than it should, and code
whose result depends on the worker that runs it. A worker never verifies itself, for a fault that
comes back agrees with itself. See `core.verification` for which shards are checked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NoReturn

import torch

from holdfast.arena.digest import digest
from holdfast.collectives.group import Group
from holdfast.core.digests import wrong_ranks
from holdfast.core.plan import Plan
from holdfast.core.verification import checked_shards
from holdfast.errors import HardwareError, JobError
from holdfast.worker.barriers import WorkerTag
from holdfast.worker.checks.eviction import evict

COLUMNS: Final = 4
_GENERATION, _STEP, _RANK, _DIGEST = range(COLUMNS)
"""Of a shard's row: in which generation it was computed, in which step, by which rank, and its
digest."""
_NOT_FINITE: Final = 1
"""The digest of a shard whose loss is not finite: of two NaNs arithmetic may hand on either."""


class ShardVerifier:
    """One worker's part in all verifications.

    Args:
        group: The workers.
        table: int64[num_shards, COLUMNS], shared; each row is written by who computes the shard.
        rate: The least share of shards to check.

    Attributes:
        pending: The shards that this worker is to compute again before it comes to the commit.
    """

    def __init__(self, group: Group, table: torch.Tensor, rate: float) -> None:
        self._group, self._table, self._rate = group, table, rate
        self._plan = Plan(counts=())
        self._step, self._disputed = 0, -1
        self._checked: dict[int, int] = {}
        self._found: dict[int, int] = {}
        self.pending: list[int] = []

    def begin(self, step: int, plan: Plan | None = None) -> None:
        """Get ready for a step.

        Args:
            step: Steps committed before.
            plan: Who computes which shards from now on; None if that has not changed.
        """
        self._step, self._plan, self._disputed = step, plan or self._plan, -1
        self._found.clear()
        size = self._plan.world_size
        self._checked = {
            shard: (place + 1) % size
            for place in range(size if size > 1 and self._rate else 0)
            for shard in checked_shards(self._plan, place, step, self._rate)
        }
        own = self._group.member_index
        self.pending = [shard for shard, verifier in self._checked.items() if verifier == own]

    def concerns(self, shard: int) -> bool:
        """Whether somebody needs a digest of `shard`."""
        return shard in self._checked

    def publish(self, shard: int, digest: int) -> None:
        """Let others see what this worker, which owes `shard`, has computed."""
        generation = self._group.generation
        self._table[shard] = torch.tensor([generation, self._step + 1, self._group.rank, digest])

    def note(self, shard: int, digest: int | None) -> None:
        """Note what this worker has found for a pending shard; None if that has no samples."""
        self.pending = [each for each in self.pending if each != shard]
        if digest is not None:
            self._found[shard] = digest

    @property
    def is_disputed(self) -> bool:
        """Whether two workers have found different digests in this step."""
        return self._disputed >= 0

    def find_dispute(self) -> bool:
        """Compare the digests of this step, once all members have come to its reduction; returns
        whether there is a dispute, for which all compute the shard once more.

        Raises:
            Aborted: The generation is over.
        """
        if not self._checked:
            return False
        mine = next((1 + shard for shard in self._found if self._differs(shard)), 0)
        reports = self._group.barrier(WorkerTag.VERIFY, self._step, mine)
        self._disputed = max(reports) - 1
        if self.is_disputed:
            self._first = {
                int(self._table[self._disputed, _RANK]): int(self._table[self._disputed, _DIGEST])
            }
            self._verifier = self._group.members[reports.index(max(reports))]
            self._verified = self._found.get(self._disputed, 0)
            self.pending = [self._disputed]
        return self.is_disputed

    def settle(self) -> NoReturn:
        """Tell with the others who is wrong.

        Raises:
            Aborted: The generation is over, because another worker is wrong perhaps.
            HardwareError: This worker is wrong.
            JobError: That cannot be told.
        """
        group, shard = self._group, self._disputed
        verified = group.barrier(WorkerTag.VERIFY, self._step, self._verified)
        again = group.barrier(WorkerTag.VERIFY, self._step, self._found.get(shard, 0))
        first = self._first | {self._verifier: verified[group.members.index(self._verifier)]}
        wrong = wrong_ranks(dict(zip(group.members, again, strict=True)), first)
        if wrong:
            error = HardwareError(
                f"computed a wrong gradient for shard {shard} in step {self._step + 1}: other "
                "workers found other bits for the same samples and weights, and they agree. Test "
                "the processor and memory of its host. Shards of earlier steps that were not "
                "checked may be wrong too"
            )
            evict(group, wrong, error, WorkerTag.VERIFY, self._step)
        names = " and ".join(f"rank {rank}" for rank in sorted(first))
        raise JobError(
            f"{names} compute different gradients for shard {shard} in step {self._step + 1} from "
            "the same samples, weights and seed. Either the result depends on the worker (on time, "
            f"the rank, or random numbers of its own), or a processor is wrong: {_advice(group)}"
        )

    def _differs(self, shard: int) -> bool:
        generation, step, rank, digest = self._table[shard].tolist()
        if (generation, step) != (self._group.generation, self._step + 1):
            return False  # by nobody in this generation
        if rank == self._group.rank:
            return False
        return bool(digest != self._found[shard])


def _advice(group: Group) -> str:
    if len(group.members) > 2:  # enough for a majority, which there is not
        return "all workers disagree, so look for the former first"
    return "run the job with three workers or more to find out which"


def digest_of(loss: float, tensors: Sequence[torch.Tensor]) -> int:
    """What tells apart what two workers have computed for a shard; see `arena.digest`.

    Args:
        loss: Its loss.
        tensors: Its gradients and whatever else it leaves.
    """
    if not math.isfinite(loss):
        return _NOT_FINITE
    return digest([torch.tensor(loss, dtype=torch.float64), *tensors])
