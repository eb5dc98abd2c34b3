"""Block sums: partial sums in the arena are added block by block, by the CPU.

Each worker reduces some of the blocks that the gradient is cut into. For each block it walks the
tree, reads the other workers' slots in place, divides at the root, and writes the result to the
root slot, which all workers share:

    slot of rank 0   ████████      each column is a block; a worker reads all rows
    slot of rank 1   ████████      of its own columns
    root             ██ ┊ ██ ┊ …   and writes them here

Blocks are the same for every world size, so the norm, which is summed over blocks, is too. A worker
writes to its slots what the others read. Its own blocks it reads where autograd has left them; see
`lending`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch

from holdfast.arena.layout import ALIGNMENT
from holdfast.arena.tensors import copy_past_cache
from holdfast.collectives.gradient_sets import GradientSet
from holdfast.collectives.lending import Lending
from holdfast.collectives.reduction import LocalSums, Place, ReductionMemory
from holdfast.collectives.slot import BLOCK, WEIGHT, square
from holdfast.core.step import tree


class BlockSums:
    """The blocks that one worker adds.

    Args:
        rank: The worker.
        memory: Memory that the workers of its host share.
    """

    def __init__(self, rank: int, memory: ReductionMemory) -> None:
        self._rank = rank
        self._layout = memory.layout
        self._partial_sum = memory.partial_sum
        self._root = memory.root
        self._norms = memory.norms
        self._scratch: dict[tuple[torch.dtype, int], torch.Tensor] = {}
        self._own: Sequence[int] = ()
        self._received: Mapping[Place, torch.Tensor] = {}  # of the block that is added now
        self._lending = Lending(memory.layout)

    def assign(self, shares: Mapping[int, Sequence[int]]) -> None:
        """Implements `Sums.assign`."""
        self._own = shares[self._rank]
        self._lending.assign_blocks(self._own)

    def publish(
        self,
        table: Sequence[int],
        sets: Callable[[int], GradientSet],
        *,
        whole: bool = False,
        without: int | None = None,
    ) -> list[int]:
        """Show the partial sums of this worker to the others; returns the slot of each node.

        Args:
            table: The set of each node; see `core.step.tree`.
            sets: The sets by number; their gradients must not change until `forget`.
            whole: True if the others read all of it, and not only the blocks that they add.
            without: A set that is not computed yet: only its weight is published.
        """
        self.forget()
        slots = tree.numbered(table)
        for number, at in zip(slots, table, strict=True):
            if number < 0:
                continue
            slot, found = self._partial_sum(self._rank, number), sets(at)
            if at == without:
                slot.stats[WEIGHT] = found.weight
                continue
            if whole or not found.rest.memory.is_cpu:  # the memory of a GPU cannot be read here
                slot.write_gradients(found.gradients)
            else:
                self._lending.write(number, slot, found.gradients)
            self.publish_rest(number, found)
        return slots

    def publish_gradient(self, number: int, parameter: int, gradient: torch.Tensor | None) -> None:
        """Publish one gradient of a set that `publish` has left out.

        Args:
            number: Slot of the set.
            parameter: The parameter.
            gradient: Its gradient, which must not change until `forget`.
        """
        slot = self._partial_sum(self._rank, number)
        self._lending.write_one(number, slot, parameter, gradient)

    def publish_rest(self, number: int, found: GradientSet) -> None:
        """Publish all but the gradients of a set that `publish` has left out."""
        slot = self._partial_sum(self._rank, number)
        slot.averages.copy_(found.rest.averages)
        found.write_rest(slot)

    def forget(self) -> None:
        """Keep no gradient of the partial sums that were published."""
        self._lending.end()

    def add_up(self, term: tree.Term, weight: float) -> None:
        """Implements `Sums.add_up`; also writes the sum of squares of each block to the norms."""
        # No two workers write to the same block, so they need no lock.
        for index in self._own:
            self._norms[index] = self.reduce(index, term, weight, {})

    def collect(self) -> None:
        """Implements `Sums.collect`: all workers read the root slot, so there is nothing to do."""

    def reduce(
        self,
        index: int,
        term: tree.Term,
        weight: float,
        received: Mapping[Place, torch.Tensor],
    ) -> float:
        """Write one block of the mean to the root; returns the sum of its squares.

        Args:
            index: The block.
            term: Term of the whole sum.
            weight: Weight of the whole sum.
            received: This block of partial sums that are in no slot of this host.
        """
        self._received = received
        out = self._root.blocks[index]
        # No term is in the root slot: its gradients are forgotten when a step ends.
        total = self._sum(term, index, out, 1)
        # Where weights add up to 1, except for rounding, the sum is the mean.
        if not math.isclose(weight, 1, rel_tol=1e-12):
            total = torch.mul(total, 1 / weight, out=out)
        elif total is not out:
            copy_past_cache(out, total)
        return square(total) if index < self._layout.num_gradient_blocks else 0.0

    def of_terms(
        self,
        terms: Mapping[int, tree.Term | None],
        indices: Sequence[int],  # noqa: ARG002  # the protocol's
    ) -> LocalSums:
        """Implements `Sums.of_terms`; a block is added when it is asked for."""

        def local_sum(node: int, index: int) -> torch.Tensor:
            term = terms[node]
            assert term is not None, "a sum that weighs nothing is not sent"
            block = self._root.blocks[index]
            return self._sum(term, index, torch.empty_like(block), 1)

        return local_sum

    def _sum(self, term: tree.Term, index: int, scratch: torch.Tensor, depth: int) -> torch.Tensor:
        """The elements of one block of a term: in place for a partial sum, else in `scratch`."""
        if isinstance(term, tree.Partial):
            lent = self._lending.block(term.slot, index) if term.rank == self._rank else None
            if lent is not None:
                return lent
            received = self._received.get((term.rank, term.slot))
            if received is not None:
                return received
            return self._partial_sum(term.rank, term.slot).blocks[index]
        # The left sum may be in `scratch`, so the right one gets memory of its own, one a level.
        left = self._sum(term.left, index, scratch, depth)
        for_right = self._scratch_of(scratch.dtype, depth)[: len(scratch)]
        right = self._sum(term.right, index, for_right, depth + 1)
        return torch.add(left, right, out=scratch)

    def _scratch_of(self, dtype: torch.dtype, depth: int) -> torch.Tensor:
        # Kept from step to step: a reduction allocates nothing.
        key = (dtype, depth)
        if key not in self._scratch:
            self._scratch[key] = torch.empty(BLOCK, dtype=dtype)
            assert self._scratch[key].data_ptr() % ALIGNMENT == 0
        return self._scratch[key]
