"""The exact all-reduce: sums partial sums along the tree over shard ids, whoever holds them.

Every worker publishes a table that says in which of its slots which node of the tree lies. Then
each takes a share of the blocks that the gradient is cut into, walks the tree for each block
(reading the other workers' slots where they are), divides at the root, and writes the result to
the root slot, which all workers share:

    slot of rank 0   ████████      each column is a block; a worker reads all rows
    slot of rank 1   ████████      of its own columns
    root             ██ ┊ ██ ┊ …   and writes them here

Blocks are the same for every world size, so the norm, which is summed over blocks, is too. No
slot is changed, so that the partial sums are still there if a worker is lost before the commit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from holdfast.arena.layout import ITEM_BYTES
from holdfast.arena.tensors import read_names
from holdfast.collectives.slot import LOGGED, LOSS, WEIGHT, Slot, SlotLayout, check_names
from holdfast.core import tree
from holdfast.errors import JobError
from holdfast.transport.shared_memory import Meeting, SharedMemoryGroup

BLOCK: Final = 1 << 16
"""Elements that are summed at a time: few enough to stay in a core's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced:
    """What all shards of a step say together.

    Attributes:
        weight: Their weights' sum.
        loss: Their losses' mean by weight.
        logged: Means by weight of what the shards logged, by name.
        used: Which parameters had a gradient, then which buffers changed, uint8[n].
        kept: The integer buffers of the first shard that was not empty.
        norm: The 2-norm of the mean gradient.
        values: What each rank brought along, by rank.
    """

    weight: float
    loss: float
    logged: dict[str, float]
    used: torch.Tensor
    kept: Sequence[torch.Tensor]
    norm: float
    values: tuple[int, ...]


Block = tuple[int, int, int, bool]


def blocks(layout: SlotLayout) -> list[Block]:
    """Every block of a slot's sums as `(run, first element, end, is_gradient)`, gradients first."""
    return [
        (run, start, min(start + BLOCK, count), is_gradient)
        for run, (dtype, first, last, is_gradient) in enumerate(layout.runs)
        for count in [(last - first) // ITEM_BYTES[dtype]]
        for start in range(0, count, BLOCK)
    ]


class TreeReducer:
    """Sums slots over all workers of a group.

    Args:
        group: The workers.
        tables: int64[world_size, num_nodes], shared; each worker writes its own row.
        norms: float64[num_blocks], shared.
        slots: Every worker's slots, by rank and number, shared.
        root: The slot that the result goes to, shared.
        layout: The layout of all slots.
        num_shards: Leaves of the tree.
    """

    def __init__(
        self,
        group: SharedMemoryGroup,
        *,
        tables: torch.Tensor,
        norms: torch.Tensor,
        slots: Callable[[int, int], Slot],
        root: Slot,
        layout: SlotLayout,
        num_shards: int,
    ) -> None:
        self._group, self._tables, self._norms = group, tables, norms
        self._slots, self._root, self._num_shards = slots, root, num_shards
        self._blocks = blocks(layout)
        self._num_gradient_blocks = sum(is_gradient for *_, is_gradient in self._blocks)
        share = [
            len(self._blocks) * rank // group.world_size for rank in range(group.world_size + 1)
        ]
        self._mine = range(share[group.rank], share[group.rank + 1])
        self._scratch: dict[tuple[torch.dtype, int], torch.Tensor] = {}

    def reduce(self, table: Sequence[int], step: int, value: int) -> Reduced:
        """Sum the partial sums of all workers; the result lies in the root slot.

        Args:
            table: This worker's slot by node.
            step: The step that they belong to.
            value: What this worker has to say to the others.

        Raises:
            Aborted: The abort word was set.
            JobError: No shard called `backward`, or shards logged different names.
        """
        self._tables[self._group.rank] = torch.tensor(table)
        values = self._group.barrier(Meeting.PARTIALS, step, value)
        term = tree.reduction(self._tables.tolist(), self._num_shards)
        if term is None:
            raise JobError(
                f"no shard of step {step} called session.backward(loss), so there is nothing to "
                "learn from: call it once for every shard that the loop yields"
            )
        stats, used, first = self._small(term)
        weight = float(stats[WEIGHT])
        if not (math.isfinite(weight) and weight > 0):
            raise JobError(f"the shards of step {step} weigh {weight} in all; it must be above 0")
        for index in self._mine:
            self._reduce_block(index, term, weight)
        kept, names = [tensor.clone() for tensor in first.kept], read_names(first.names)
        self._group.barrier(Meeting.ROOT, step)
        means = (stats / weight).tolist()
        return Reduced(
            weight=weight,
            loss=means[LOSS],
            logged=dict(zip(names, means[LOGGED:], strict=False)),
            used=used,
            kept=kept,
            norm=math.sqrt(float(self._norms[: self._num_gradient_blocks].sum())),
            values=values,
        )

    def scale_gradient(self, factor: float, step: int) -> None:
        """Multiply the reduced gradient, each worker its own blocks.

        Raises:
            Aborted: The abort word was set.
        """
        for index in self._mine:
            run, start, end, is_gradient = self._blocks[index]
            if is_gradient:
                self._root.sums[run][start:end].mul_(factor)
        self._group.barrier(Meeting.CLIP, step)

    def _small(self, term: tree.Term) -> tuple[torch.Tensor, torch.Tensor, Slot]:
        """The statistics and flags of a term, and its leftmost slot."""
        if isinstance(term, tree.Partial):
            slot = self._slots(term.rank, term.slot)
            return slot.stats.clone(), slot.used.clone(), slot
        stats, used, first = self._small(term.left)
        right_stats, right_used, other = self._small(term.right)
        check_names(first, other)
        return stats.add_(right_stats), used.logical_or_(right_used), first

    def _reduce_block(self, index: int, term: tree.Term, weight: float) -> None:
        run, start, end, is_gradient = self._blocks[index]
        out = self._root.sums[run][start:end]
        torch.div(self._sum(term, run, start, end, 0), weight, out=out)
        if is_gradient:
            self._norms[index] = _square(out)

    def _sum(self, term: tree.Term, run: int, start: int, end: int, depth: int) -> torch.Tensor:
        if isinstance(term, tree.Partial):
            return self._slots(term.rank, term.slot).sums[run][start:end]
        left = self._sum(term.left, run, start, end, depth + 1)
        right = self._sum(term.right, run, start, end, depth + 2)
        return torch.add(left, right, out=self._room(left.dtype, depth)[: end - start])

    def _room(self, dtype: torch.dtype, depth: int) -> torch.Tensor:
        key = (dtype, depth)
        if key not in self._scratch:
            self._scratch[key] = torch.empty(BLOCK, dtype=dtype)
        return self._scratch[key]


def _square(block: torch.Tensor) -> float:
    """The sum of squares of one block: in float32 as far as that goes, else in float64."""
    if block.dtype == torch.float32:
        square = float(torch.dot(block, block))
        if math.isfinite(square):
            return square
    return float(block.double().square().sum())
