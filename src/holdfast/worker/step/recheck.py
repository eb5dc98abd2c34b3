"""Recheck: whether data or hardware causes a gradient that is not finite.

    all    find the partial sums that are not finite, in the slots that all can read
    each   recomputes those of the preceding member, shard by shard, in its own memory
    all    exchange results ─▶ the same bits: the data or the model is the cause
                            ─▶ other bits: the worker that computed them first leaves

With scaled losses the cause may be the scale: then the step is skipped, and the scale is halved.

The partial sums of the step stay as they are. If a worker leaves, the remaining ones take over its
part of the step and complete it. A new generation ends a recheck without a result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import torch

from holdfast.collectives.barrier_tags import WorkerTag
from holdfast.collectives.group import Group
from holdfast.collectives.reduction import ReductionMemory
from holdfast.collectives.slot import Slot
from holdfast.core.step import tree
from holdfast.core.step.verification import wrong_ranks
from holdfast.errors import HardwareError, NonFiniteError
from holdfast.worker.checks.eviction import evict
from holdfast.worker.step.gradient_norm import is_finite, not_finite
from holdfast.worker.step.shard_work import PartialSums

_OTHER_BITS: Final = -1
_SAME_BITS: Final = 0
"""Findings of a worker. A shard's number plus one: the same bits, which are not finite."""
_NAMED: Final = 4
"""Most shards that a message names."""


class Recheck:
    """One worker's part in a recheck.

    Args:
        group: The workers.
        memory: Memory in which their partial sums can be read.
        tables: Every member's slots by node.
        own: Partial sums that take the results, of as many shards as the tree has leaves.

    Attributes:
        shards: Shards that this worker recomputes.
        sums: Partial sums that take the results.
    """

    def __init__(
        self,
        group: Group,
        memory: ReductionMemory,
        tables: Mapping[int, Sequence[int]],
        own: PartialSums,
    ) -> None:
        # All slots are whole and no worker writes to one until the next step: every member reads
        # all of them.
        held = {
            rank: {
                node: memory.partial_sum(rank, number)
                for node, number in enumerate(table)
                if number >= 0
            }
            for rank, table in tables.items()
        }
        bad_sums = {
            rank: {node: slot for node, slot in sums.items() if not is_finite(slot.norm())}
            for rank, sums in held.items()
        }
        self._sums_are_odd = any(bad_sums.values())
        # Every member finds the same suspects, because all read the same memory.
        suspects = bad_sums if self._sums_are_odd else held  # maybe only their total is not finite
        self._group = group
        self._shards_of = {
            rank: [shard for node in sums for shard in tree.leaves(node, own.num_leaves)]
            for rank, sums in suspects.items()
        }
        # A worker never checks itself, unless it is alone: a repeatable fault would give equal
        # bits.
        before = group.members[group.member_index - 1]
        self._theirs = suspects[before]
        self.shards = self._shards_of[before]
        self.sums = own
        size_bytes = memory.layout.layout.size_bytes
        self._slot = Slot(torch.zeros(size_bytes, dtype=torch.uint8), memory.layout)
        self._finding = _SAME_BITS

    def examine(self, shard: int, number: int) -> None:
        """Note whether a recomputed shard, which is in a set, is not finite by itself."""
        if self._finding == _SAME_BITS and not is_finite(self._written(number).norm()):
            self._finding = 1 + shard

    def resolve(self, step: int, norms: Mapping[str, float]) -> NonFiniteError:
        """Decide with the other members on the cause, once all have recomputed their shards;
        returns it if all found the same bits.

        Args:
            step: Steps committed before this one.
            norms: Norms of the mean gradients by parameter.

        Raises:
            Aborted: The generation is over, for example because another worker was wrong.
            HardwareError: This worker was wrong.
        """
        group = self._group
        # All shards of the suspects are recomputed and added along the same tree, so bits can be
        # compared.
        same = all(self._is_same(node, slot) for node, slot in self._theirs.items())
        findings = group.barrier(WorkerTag.RECHECK, step, self._finding if same else _OTHER_BITS)
        # Other bits from the same samples and weights: the worker before the one that reports them
        # is wrong.
        wrong = {
            rank
            for index, what in enumerate(findings)
            for rank in wrong_ranks(
                {group.members[index]: min(what, _SAME_BITS)},
                before={group.members[index - 1]: _SAME_BITS},
            )
        }
        if wrong:
            error = HardwareError(
                f"computed a wrong gradient in step {step + 1}: it is not finite, and another "
                "worker got other bits from the same samples and weights; test the CPU and memory "
                "of its host"
            )
            evict(group, wrong, error, WorkerTag.RECHECK, step)
        # Hardware is cleared. Shards that are not finite by themselves point at their samples.
        bad = [what - 1 for what in findings if what > _SAME_BITS]
        shards = bad or [shard for shards in self._shards_of.values() for shard in shards]
        cause = "so the cause is the data or the model, not the hardware: "
        return not_finite(
            step,
            norms,
            f"recomputing it gave the same bits, {cause * self._sums_are_odd}"
            f"look at the samples of {_in_words(shards)}",
        )

    def _is_same(self, node: int, theirs: Slot) -> bool:
        """True if this worker has found the same bits for a node."""
        number = self.sums.table[node]
        return number != tree.EMPTY and all(
            map(_have_same_bits, self._written(number).sums, theirs.sums)
        )

    def _written(self, number: int) -> Slot:
        """An own sum, in the form of those in slots."""
        self.sums.sets[number].write_sums(self._slot)
        return self._slot


def _have_same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """True if two tensors are equal except for the payloads of NaNs: a sum of two NaNs may be
    either, and kernels may swap its operands.
    """
    both = left.isnan() & right.isnan()
    left, right = (side.masked_fill(both, 0).view(torch.uint8) for side in (left, right))
    return torch.equal(left, right)


def _in_words(shards: Iterable[int]) -> str:
    first, *rest = sorted(shards)
    if not rest:
        return f"shard {first}"
    named = ", ".join(map(str, [first, *rest][:_NAMED]))
    return f"shards {named}{' and more' if len(rest) >= _NAMED else ''}"
