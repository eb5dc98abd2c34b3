"""Block sums: partial sums in the arena are added block by block, by the CPU.

Each worker reduces some of the blocks that the gradient is cut into. For each block it walks the
tree, reads the other workers' slots in place, divides at the root, and writes the result to the
root slot, which all workers share:

    slot of rank 0   ████████      each column is a block; a worker reads all rows
    slot of rank 1   ████████      of its own columns
    root             ██ ┊ ██ ┊ …   and writes them here

Blocks are the same for every world size, so the norm, which is summed over blocks, is too. A worker
that holds a single partial sum need not copy its own blocks of the gradient to the slot; see
`lending`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from holdfast.arena.layout import ALIGNMENT
from holdfast.arena.tensors import copy_past_cache
from holdfast.collectives.lending import Lending
from holdfast.collectives.reduction import LocalSums, Place, ReductionMemory
from holdfast.collectives.slot import BLOCK, square
from holdfast.core.step import tree


class BlockSums:
    """The blocks that one worker adds.

    Args:
        rank: The worker.
        memory: Memory that the workers of its host share.

    Attributes:
        lending: The gradients that this worker lends itself.
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
        self.lending = Lending(memory.layout)

    def assign(self, shares: Mapping[int, Sequence[int]]) -> None:
        """Implements `Sums.assign`."""
        self._own = shares[self._rank]
        self.lending.assign_blocks(self._own)

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
        scratch = self._scratch_of(out.dtype, 0)[: len(out)]
        total = self._sum(term, index, scratch, 1)
        # Where weights add up to 1, but for rounding, the sum is the mean.
        if not math.isclose(weight, 1, rel_tol=1e-12):
            total = torch.mul(total, 1 / weight, out=scratch)
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
            # A worker that lends has one partial sum only, so the block is of this term.
            lent = self.lending.block(index) if term.rank == self._rank else None
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
