"""The exact all-reduce: adds partial sums along the tree over shard ids, wherever they are held.

Every worker publishes a table of its partial sums: the slot of each node of the tree. Then each
worker reduces some of the blocks that the gradient is cut into. For each block it walks the tree,
reads the other workers' slots in place, divides at the root, and writes the result to the root
slot, which all workers share:

    slot of rank 0   ████████      each column is a block; a worker reads all rows
    slot of rank 1   ████████      of its own columns
    root             ██ ┊ ██ ┊ …   and writes them here

Blocks are the same for every world size, so the norm, which is summed over blocks, is too. No slot
changes, so the partial sums are still there if a worker is lost before the commit.

Only one worker reads a given block. So where a worker holds a single partial sum, it need not copy
its own blocks of the gradient to the slot: it lends the gradient to its reducer for the step.
"""

from __future__ import annotations

import enum
import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from holdfast.arena.layout import ALIGNMENT
from holdfast.arena.tensors import copy_past_cache, read_names
from holdfast.collectives.group import BarrierTag, Group
from holdfast.collectives.slot import (
    BLOCK,
    LOGGED,
    LOSS,
    WEIGHT,
    Slot,
    SlotLayout,
    check_names,
    square,
)
from holdfast.core.step import tree
from holdfast.errors import JobError


@enum.unique
class ReduceTag(BarrierTag):
    """What a barrier of the reducer is for."""

    TABLES = 1, "exchanging tables of partial sums for step {next}"
    PARTIALS = 2, "summing the gradient of step {next}"
    REDUCED = 3, "summing the gradient of step {next}"
    CLIP = 4, "clipping the gradient of step {next}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced:
    """The result of all shards of a step, apart from the gradient in the root slot.

    Attributes:
        weight: The sum of their weights.
        loss: The weighted mean of their losses.
        logged: Weighted means of what the shards logged, by name.
        used: Which parameters had a gradient, then which buffers changed, uint8[n].
        kept: The integer buffers of the first shard that was not empty.
        norm: The 2-norm of the mean gradient.
        values: The value that each member brought.
        digests: The digest that each member brought.
    """

    weight: float
    loss: float
    logged: dict[str, float]
    used: torch.Tensor
    kept: Sequence[torch.Tensor]
    norm: float
    values: tuple[int, ...]
    digests: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReductionMemory:
    """What the reducers of one host share.

    Attributes:
        layout: The layout of all slots.
        partial_sum: Gives the slot to read a member's partial sum from, by rank and slot number.
        root: The slot of the reduced gradient: one for the host.
        tables: int64[world_size, num_nodes]; each worker writes its own row.
        norms: float64[num_blocks]; each worker writes its own blocks.
    """

    layout: SlotLayout
    partial_sum: Callable[[int, int], Slot]
    root: Slot
    tables: torch.Tensor
    norms: torch.Tensor


class TreeReducer:
    """Sums slots over all workers of a group.

    Args:
        group: The workers.
        memory: What they share.
        num_leaves: Leaves of the tree.
    """

    def __init__(self, group: Group, memory: ReductionMemory, num_leaves: int) -> None:
        self._group, self._layout, self._num_leaves = group, memory.layout, num_leaves
        self._partial_sum, self._root = memory.partial_sum, memory.root
        self._tables, self._norms = memory.tables, memory.norms
        self._scratch: dict[tuple[torch.dtype, int], torch.Tensor] = {}
        self._lent: dict[int, torch.Tensor] = {}
        self._reduced: Reduced | None = None
        self._own = range(0)
        self.assign_blocks()

    def assign_blocks(self) -> None:
        """Assign the blocks to the current members.

        Gradients that were lent before stay lent; see `write_lent`.
        """
        count, group = len(self._layout.blocks), self._group
        size = len(group.members)
        self._own = range(
            count * group.member_index // size, count * (group.member_index + 1) // size
        )
        self._own_blocks = [self._blocks_within(*span) for span in self._layout.gradient_spans]

    def write_lent(self, slot: Slot) -> None:
        """Write lent gradients to their slot, where other workers can read them."""
        for index, gradient in self._lent.items():
            copy_past_cache(slot.blocks[index], gradient)
        self._lent.clear()

    def publish(self, table: Sequence[int]) -> None:
        """Show the others the slots of this worker's partial sums, by node."""
        self._tables[self._group.rank] = torch.tensor(table)

    def gather_tables(self, table: Sequence[int], step: int) -> list[list[int]]:
        """The tables of all members, in their order, before the rest of `step` is computed.

        Raises:
            Aborted: The generation is over.
        """
        payload = array("q", table).tobytes()
        tables = self._group.gather(ReduceTag.TABLES, step, payload)
        return [array("q", each).tolist() for each in tables]

    def published(self) -> dict[int, list[int]]:
        """The table that each member has published, by rank."""
        rows = self._tables.tolist()
        return {rank: rows[rank] for rank in self._group.members}

    def lend(self, parameter: int, gradient: torch.Tensor) -> tuple[int, int]:
        """Read this worker's blocks of a parameter from `gradient` instead of the slot.

        Only for a worker that holds a single partial sum.

        Args:
            parameter: The parameter's index.
            gradient: Flat; must not change until `end_lending`.

        Returns:
            The range of elements that need not be written to the slot: empty if `gradient` is not
            aligned like a slot, because kernels may round by alignment.
        """
        own = self._own_blocks[parameter]
        if not own or gradient.data_ptr() % ALIGNMENT:
            return 0, 0
        _, origin, _ = self._layout.gradient_spans[parameter]
        for index in own:
            _, start, end = self._layout.blocks[index]
            self._lent[index] = gradient[start - origin : end - origin]
        return self._layout.blocks[own[0]][1] - origin, self._layout.blocks[own[-1]][2] - origin

    def end_lending(self) -> None:
        """Forget the lent gradients: the step is over."""
        self._lent.clear()

    def reduce(self, table: Sequence[int], step: int, value: int, digest: int) -> Reduced:
        """Add the partial sums of all workers; the root slot takes the mean gradient.

        Args:
            table: The slot of each node, on this worker.
            step: Steps committed before this one.
            value, digest: What this worker brings for the others.

        Raises:
            Aborted: The generation is over.
            JobError: No shard called `backward`, or shards logged different names.
        """
        self.publish(table)
        values = self._group.barrier(ReduceTag.PARTIALS, step, value)
        term = tree.reduction(self.published(), self._num_leaves)
        if term is None:
            raise JobError(
                f"no shard of step {step + 1} called session.backward(loss), so there is no "
                "gradient; call it once for every shard that the loop yields"
            )
        stats, used, first = self._small(term)
        weight = float(stats[WEIGHT])
        if not (math.isfinite(weight) and weight > 0):
            raise JobError(
                f"the shards of step {step + 1} weigh {weight} in all; it must be above 0"
            )
        self._norms[self._own.start : self._own.stop] = torch.tensor(
            [self._reduce_block(index, term, weight) for index in self._own],
            dtype=torch.float64,
        )
        means, names = (stats / weight).tolist(), read_names(first.names)
        self._reduced = Reduced(
            weight=weight,
            loss=means[LOSS],
            logged=dict(zip(names, means[LOGGED:], strict=False)),
            used=used,
            kept=[tensor.clone() for tensor in first.kept],
            norm=math.nan,
            values=values,
            digests=(),
        )
        digests = self._group.barrier(ReduceTag.REDUCED, step, digest)
        return replace(self.reduced(), digests=digests)

    def reduced(self) -> Reduced:
        """The result of the newest reduction. It is whole for a worker that was aborted at the last
        barrier, too, if any member has passed that barrier.
        """
        assert self._reduced is not None, "no step was reduced"
        return replace(self._reduced, norm=math.sqrt(float(self._norms.sum())))

    def scale_gradient(self, factor: float, step: int) -> None:
        """Multiply the reduced gradient by `factor`; each worker scales its own blocks.

        Raises:
            Aborted: The generation is over.
        """
        for index in self._own:
            if index < self._layout.num_gradient_blocks:
                self._root.blocks[index].mul_(factor)
        self._group.barrier(ReduceTag.CLIP, step)

    def _small(self, term: tree.Term) -> tuple[torch.Tensor, torch.Tensor, Slot]:
        """The statistics and flags of a term, and its leftmost slot."""
        if isinstance(term, tree.Partial):
            slot = self._partial_sum(term.rank, term.slot)
            return slot.stats.clone(), slot.used.clone(), slot
        stats, used, first = self._small(term.left)
        right_stats, right_used, other = self._small(term.right)
        check_names(first, other)
        return stats.add_(right_stats), used.logical_or_(right_used), first

    def _reduce_block(self, index: int, term: tree.Term, weight: float) -> float:
        """Write one block of the mean to the root; returns the sum of its squares."""
        out = self._root.blocks[index]
        scratch = self._scratch_of(out.dtype, 0)[: len(out)]
        total = self._sum(term, index, scratch, 1)
        if not math.isclose(weight, 1, rel_tol=1e-12):
            total = torch.mul(total, 1 / weight, out=scratch)
        copy_past_cache(out, total)
        return square(total) if index < self._layout.num_gradient_blocks else 0.0

    def _sum(self, term: tree.Term, index: int, scratch: torch.Tensor, depth: int) -> torch.Tensor:
        """The elements of one block of a term: in place for a partial sum, else in `scratch`."""
        if isinstance(term, tree.Partial):
            lent = self._lent.get(index) if term.rank == self._group.rank else None
            if lent is not None:
                return lent
            return self._partial_sum(term.rank, term.slot).blocks[index]
        left = self._sum(term.left, index, scratch, depth)
        for_right = self._scratch_of(scratch.dtype, depth)[: len(scratch)]
        right = self._sum(term.right, index, for_right, depth + 1)
        return torch.add(left, right, out=scratch)

    def _blocks_within(self, run: int, start: int, end: int) -> list[int]:
        """This worker's blocks that are whole between two elements of a run."""
        return [
            index
            for index in self._own
            for block_run, block_start, block_end in [self._layout.blocks[index]]
            if run == block_run and start <= block_start and block_end <= end
        ]

    def _scratch_of(self, dtype: torch.dtype, depth: int) -> torch.Tensor:
        key = (dtype, depth)
        if key not in self._scratch:
            self._scratch[key] = torch.empty(BLOCK, dtype=dtype)
            assert self._scratch[key].data_ptr() % ALIGNMENT == 0
        return self._scratch[key]
