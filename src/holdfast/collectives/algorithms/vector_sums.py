"""Vector sums: the gradient of a step is one vector per worker, all-reduced by an algorithm, or
compressed between hosts.

A worker's vector is its first slot in the arena: the sum of its shards, or zeros. The algorithm
makes all vectors equal to the sum of all. Then the workers of a host divide it by the weight, a
share of the blocks each, and write it to the root slot, as they do after the exact tree.

A worker that is lost leaves vectors that are half added. None is needed: shards that are merged are
computed again after any failure, unless a member has passed the barrier after the root slot.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from holdfast.arena.tensors import copy_past_cache
from holdfast.collectives.algorithms.choice import (
    ALGORITHMS,
    AUTO,
    TREE,
    Chosen,
    choose,
    compressed,
    measure,
)
from holdfast.collectives.algorithms.compressed_sums import (
    CompressedSums,
    CompressedVector,
    EncodedVector,
)
from holdfast.collectives.algorithms.host_links import HostLinks
from holdfast.collectives.algorithms.links import Links
from holdfast.collectives.algorithms.low_rank import LowRankVector, matrices_of
from holdfast.collectives.algorithms.shared_links import SharedLinks
from holdfast.collectives.compression.codecs import codec_of
from holdfast.collectives.compression.feedback import ErrorFeedback
from holdfast.collectives.group import Group
from holdfast.collectives.network import Network
from holdfast.collectives.reduction import ReductionMemory, share
from holdfast.collectives.slot import Slot, square
from holdfast.core.step import tree
from holdfast.job.settings import CompressionSettings


class VectorSums:
    """Adds the gradient by the algorithm of a job.

    Args:
        group: The workers.
        memory: Memory that those of this host share.
        collective: A name from `choice.ALGORITHMS`, TREE or AUTO.
        compression: Compression of gradients, in place of an algorithm, on several hosts.

    Attributes:
        name: Name of what adds in this generation: one from `choice.ALGORITHMS`, the method of
            compression, or TREE.
        sends_whole: True if the next gradient is not compressed.
    """

    def __init__(
        self,
        group: Group,
        memory: ReductionMemory,
        collective: str,
        compression: CompressionSettings,
    ) -> None:
        self._group = group
        self._memory = memory
        self._collective = collective
        self._compression = compression
        self._codec = codec_of(compression)
        self._feedback: ErrorFeedback | None = None
        if memory.errors is not None and compression.error_feedback:
            self._feedback = ErrorFeedback(group, memory.errors, memory.layout)
        self._compressed: CompressedSums | None = None
        self._links: list[Links] = []
        self.name = collective
        self.sends_whole = False

    def begin_generation(self, step: int, num_leaves: int) -> Chosen | None:
        """Get ready to add with the current members; returns what was chosen or compresses, and why
        that pays.

        Raises:
            Aborted: The generation is over.
        """
        group = self._group
        slots = {
            group.members.index(rank): self._memory.partial_sum(rank, 0) for rank in group.local
        }
        # One vector for each dtype.
        vectors = [
            {member: slot.sums[at] for member, slot in slots.items()}
            for at in range(len(self._slot.sums))
        ]
        self.name = self._collective
        self._compressed = self._compress(vectors)
        self._links = [links_of(group, each) for each in vectors]
        if not vectors:
            self.name = TREE
            return None
        if self._compressed is None and self._collective != AUTO:
            return None
        # By the longest vector; there is seldom another one of weight.
        at = max(range(len(vectors)), key=lambda each: self._slot.sums[each].nbytes)
        vector = self._slot.sums[at]
        fabric = measure(group, self._links[at], len(vector), vector.element_size(), step)
        if self._compressed is None:
            chosen = choose(fabric, vector.nbytes, self._most_sums(num_leaves))
        else:
            method = self._compression.method
            chosen = compressed(method, fabric, vector.nbytes, self._compressed.ratio(at))
        self.name = chosen.name
        return chosen

    def _compress(self, vectors: Sequence[Mapping[int, torch.Tensor]]) -> CompressedSums | None:
        """The sums of compressed vectors; None if the job compresses nothing, or has one host."""
        network = self._group.network
        if network is None or not self._compression.is_on:
            return None
        ways = [self._way(network, at, each) for at, each in enumerate(vectors)]
        return CompressedSums(self._slot.sums, ways, self._feedback)

    def _way(
        self, network: Network, at: int, vectors: Mapping[int, torch.Tensor]
    ) -> CompressedVector:
        """The way in which the vectors of a dtype are added."""
        group = self._group
        layout = self._memory.layout
        is_gradient = layout.dtype_ranges[at][3]
        matrices = matrices_of(layout, at, self._compression.rank)
        if self._compression.method != "powersgd" or not matrices:
            return EncodedVector(group, network, vectors, self._codec if is_gradient else None)
        # The second slot of a worker is free: it has one partial sum.
        messages = {
            member: self._memory.partial_sum(group.members[member], 1).sums[at]
            for member in vectors
        }
        return LowRankVector(group, network, vectors, messages, matrices)

    def add_up(self, step: int, weight: float) -> None:
        """Add the vectors of all members, and write the mean to the root slot, and the sum of
        squares of each block to the norms. Once all workers of a host have, both are whole.

        Args:
            step: Steps committed.
            weight: Weight of the whole sum.

        Raises:
            Aborted: The generation is over.
            HoldfastError: It took too long.
        """
        slot = self._slot
        if not bool((self._memory.tables[self._group.rank] >= 0).any()):
            for vector in slot.sums:  # this worker had no samples
                vector.zero_()
        self._reduce(step, slot.sums)
        # Every member has the sum. From here on this worker reads only its own slot.
        local = self._group.local
        layout = self._memory.layout
        is_mean = math.isclose(weight, 1, rel_tol=1e-12)
        for index in share(len(layout.blocks), local.index(self._group.rank), len(local)):
            out = self._memory.root.blocks[index]
            if is_mean:
                copy_past_cache(out, slot.blocks[index])
            else:
                torch.mul(slot.blocks[index], 1 / weight, out=out)
            is_gradient = index < layout.num_gradient_blocks
            self._memory.norms[index] = square(out) if is_gradient else 0.0

    def undo(self, step: int) -> None:
        """Note that a step does not change the weights, so that its error is not kept."""
        if self._compressed is not None:
            self._compressed.undo(step)

    @property
    def compresses(self) -> bool:
        """True if the gradients of this generation are compressed, except for whole steps."""
        return self._compressed is not None

    def _reduce(self, step: int, vectors: Sequence[torch.Tensor]) -> None:
        """Add the vectors of all members, in place."""
        if self._compressed is not None:
            self._compressed.add_up(step, is_whole=self.sends_whole)
            return
        members = range(len(self._group.members))
        for links, vector in zip(self._links, vectors, strict=True):
            ALGORITHMS[self.name](links, members, range(len(vector)))

    @property
    def _slot(self) -> Slot:
        return self._memory.partial_sum(self._group.rank, 0)

    def _most_sums(self, num_leaves: int) -> int:
        """Partial sums that a host passes on at most, where every worker has one leaf."""
        network = self._group.network
        if network is None:
            return 1
        counts = []
        for ranks in network.hosts.ranks:
            table = [tree.ABSENT] * tree.num_nodes(num_leaves)
            for rank in ranks:
                table[tree.leaf(self._group.members.index(rank), num_leaves)] = 0
            counts.append(len(tree.frontier([table], num_leaves)))
        return max(counts)


def links_of(group: Group, vectors: Mapping[int, torch.Tensor]) -> Links:
    """The links of a worker, given the vectors of this host by member."""
    if group.network is None:
        return SharedLinks(group, vectors)
    return HostLinks(group, group.network, vectors)
