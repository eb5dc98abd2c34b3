"""Shard verifier: another worker recomputes some shards before the step commits.

    assigned   computes its shard, publishes a digest ──┐
    verifier   computes the same shard, keeps a digest ─┴▶ all compare after the reduction
                                                           ├▶ equal: commit
                                                           └▶ else all recompute it and decide

It detects what a check for NaN does not: a CPU that computes wrong bits, and code that is not
deterministic. A worker never verifies itself, because a repeatable fault gives equal digests.
`core.step.verification` says which shards are checked, and which ranks are wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NoReturn

import torch

from holdfast.arena.digest import digest
from holdfast.collectives.barrier_tags import WorkerTag
from holdfast.collectives.group import Group
from holdfast.core.step.plan import Plan
from holdfast.core.step.verification import checked_shards, wrong_ranks
from holdfast.errors import HardwareError, JobError
from holdfast.worker.checks.eviction import evict

COLUMNS: Final = 4
_GENERATION, _STEP, _RANK, _DIGEST = range(COLUMNS)
"""Columns of a shard's row: generation, step and rank that computed it, and its digest."""
_NOT_FINITE: Final = 1
"""The digest of a shard whose loss or gradient is not finite: the bits of NaNs are not
reproducible.
"""


class ShardVerifier:
    """Verifies shards on one worker.

    Args:
        group: The members.
        table: int64[num_shards, COLUMNS], shared; the worker that computes a shard writes its row.
        rate: The minimum fraction of shards to check.

    Attributes:
        pending: The shards that this worker recomputes before the commit.
    """

    def __init__(self, group: Group, table: torch.Tensor, rate: float) -> None:
        self._group = group
        self._table = table
        self._rate = rate
        self._plan = Plan(counts=())
        self._step = 0
        self._disputed = -1
        self._checked: dict[int, int] = {}
        self._found: dict[int, int] = {}
        self.pending: list[int] = []

    def begin(self, step: int, plan: Plan | None = None) -> None:
        """Get ready for a step.

        Args:
            step: Steps committed before.
            plan: Assignment of shards from now on; None if that has not changed.
        """
        self._step = step
        self._plan = plan or self._plan
        self._disputed = -1
        self._found.clear()
        size = self._plan.world_size
        # The neighbour of the worker that computes a shard verifies it: never the same one.
        self._checked = {
            shard: (place + 1) % size
            for place in range(size if size > 1 and self._rate else 0)
            for shard in checked_shards(self._plan, place, step, self._rate)
        }
        own = self._group.member_index
        self.pending = [shard for shard, verifier in self._checked.items() if verifier == own]

    def checks(self, shard: int) -> bool:
        """True if `shard` is checked in this step."""
        return shard in self._checked

    def publish(self, shard: int, digest: int) -> None:
        """Publish the digest of `shard`, which is assigned to this worker."""
        generation = self._group.generation
        self._table[shard] = torch.tensor([generation, self._step + 1, self._group.rank, digest])

    def record(self, shard: int, digest: int | None) -> None:
        """Note the digest of a pending shard; None if the shard has no samples."""
        self.pending = [each for each in self.pending if each != shard]
        if digest is not None:
            self._found[shard] = digest

    @property
    def is_disputed(self) -> bool:
        """True if two workers found different digests in this step."""
        return self._disputed >= 0

    def find_dispute(self) -> bool:
        """Compare the digests of this step after its reduction; returns whether two differ.

        In that case all members recompute the shard.

        Raises:
            Aborted: The generation is over.
        """
        if not self._checked:
            return False
        # The table is whole: every row was written before a barrier of the reduction.
        mine = next((1 + shard for shard in self._found if self._differs(shard)), 0)
        reports = self._group.barrier(WorkerTag.VERIFY, self._step, mine)
        # Of several disputed shards, all members choose the same one.
        self._disputed = max(reports) - 1
        if self.is_disputed:
            self._first = {
                int(self._table[self._disputed, _RANK]): int(self._table[self._disputed, _DIGEST])
            }
            self._verifier = self._group.members[reports.index(max(reports))]
            self._verified = self._found.get(self._disputed, 0)
            self.pending = [self._disputed]
        return self.is_disputed

    def resolve(self) -> NoReturn:
        """Decide with the other members which ranks are wrong.

        Raises:
            Aborted: The generation is over, for example because another worker is wrong.
            HardwareError: This worker is wrong.
            JobError: It cannot be told which ranks are wrong.
        """
        group = self._group
        shard = self._disputed
        # What the verifier found the first time, then what everyone found now, itself included.
        verified = group.barrier(WorkerTag.VERIFY, self._step, self._verified)
        again = group.barrier(WorkerTag.VERIFY, self._step, self._found.get(shard, 0))
        first = self._first | {self._verifier: verified[group.members.index(self._verifier)]}
        # The majority of the second round is right; of two, the one that contradicts itself is
        # wrong.
        wrong = wrong_ranks(dict(zip(group.members, again, strict=True)), first)
        if wrong:
            error = HardwareError(
                f"computed a wrong gradient for shard {shard} in step {self._step + 1}: "
                "recomputing it from the same samples and weights gave other bits. Test the CPU "
                "and memory of its host. Shards of earlier steps that were not checked may be "
                "wrong, too"
            )
            evict(group, wrong, error, WorkerTag.VERIFY, self._step)
        names = " and ".join(f"rank {rank}" for rank in sorted(first))
        raise JobError(
            f"{names} compute different gradients for shard {shard} in step {self._step + 1} from "
            "the same samples, weights and seed. Either the code is not deterministic (it uses the "
            f"time, the rank or its own random numbers), or a CPU is faulty: {_advice(group)}"
        )

    def _differs(self, shard: int) -> bool:
        generation, step, rank, digest = self._table[shard].tolist()
        if (generation, step) != (self._group.generation, self._step + 1):
            return False  # not computed in this step yet
        if rank == self._group.rank:
            return False
        return bool(digest != self._found[shard])


def _advice(group: Group) -> str:
    if len(group.members) > 2:  # enough for a majority
        return "all workers disagree, so check the code first"
    return "run the job with three workers or more to find out which"


def digest_of(
    loss: float, gradients: Sequence[torch.Tensor], buffers: Sequence[torch.Tensor]
) -> int:
    """Tells apart the results of two workers for a shard; see `arena.digest`.

    Args:
        loss: Its loss.
        gradients: Its gradients.
        buffers: The model's buffers afterwards.
    """
    if not (math.isfinite(loss) and all(bool(each.isfinite().all()) for each in gradients)):
        return _NOT_FINITE
    return digest([torch.tensor(loss, dtype=torch.float64), *gradients, *buffers])
