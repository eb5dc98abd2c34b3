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

On several hosts, each host first learns which sums the others pass on, and the owner of a block
receives them; see `exchange`. Then every host has the whole result in a root slot of its own.

A worker that holds a single partial sum need not copy its own blocks of the gradient to the slot;
see `lending`.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import torch

from holdfast.arena.layout import ALIGNMENT
from holdfast.arena.tensors import copy_past_cache, read_names
from holdfast.collectives.barrier_tags import ReduceTag
from holdfast.collectives.exchange import Blocks, Contribution, HostExchange, Summary
from holdfast.collectives.group import Group
from holdfast.collectives.lending import Lending
from holdfast.collectives.network import GroupHosts, Network
from holdfast.collectives.reduction import (
    Reduced,
    ReductionMemory,
    check_summed,
    check_weight,
)
from holdfast.collectives.slot import BLOCK, LOGGED, LOSS, WEIGHT, Slot, check_names, square
from holdfast.core.balance.times import StepTimes
from holdfast.core.step import tree
from holdfast.core.step.plan import cells

T = TypeVar("T")


class PlansDiffer(Exception):
    """Workers have followed different plans in one step, so shards are missing."""


class TreeReducer:
    """Sums slots over all workers of a group.

    Args:
        group: The workers.
        memory: Memory that they share.
        num_leaves: Leaves of the tree.
        on_partials_complete: Called in each reduction once the partial sums of all workers are
            complete.

    Attributes:
        lending: The gradients that this worker lends to its reducer.
    """

    def __init__(
        self,
        group: Group,
        memory: ReductionMemory,
        num_leaves: int,
        on_partials_complete: Callable[[], object] = lambda: None,
    ) -> None:
        self._on_partials_complete = on_partials_complete
        self._group = group
        self._layout = memory.layout
        self._num_leaves = num_leaves
        self._partial_sum = memory.partial_sum
        self._root = memory.root
        self._tables = memory.tables
        self._norms = memory.norms
        self._times = memory.times
        self._scratch: dict[tuple[torch.dtype, int], torch.Tensor] = {}
        self.lending = Lending(memory.layout)
        self._reduced: Reduced | None = None
        self._own_blocks: Sequence[int] = ()
        self._cells: list[list[range]] = []
        self._remote: dict[tuple[int, int], Summary] = {}
        self._received: Mapping[tuple[int, int], torch.Tensor] = {}
        self.assign_blocks()

    def assign_blocks(self) -> None:
        """Assign the blocks to the current members."""
        network = self._group.network
        self._own_blocks = self._share()
        # On several hosts a block belongs to one of them, and there to the worker of its lane.
        if network is not None:
            sizes = [block.nbytes for block in self._root.blocks]
            hosts = network.hosts
            self._cells = cells(sizes, len(hosts.ranks), hosts.num_lanes)
            self._own_blocks = sorted(
                index for host in self._cells for lane in network.lanes for index in host[lane]
            )
        self.lending.assign_blocks(self._own_blocks)

    def _share(self) -> range:
        """This worker's share of the blocks among the workers of its host."""
        count = len(self._layout.blocks)
        local = self._group.local
        place = local.index(self._group.rank)
        return range(count * place // len(local), count * (place + 1) // len(local))

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

    def reduce(
        self, table: Sequence[int], step: int, vote: int, digest: int, times: StepTimes
    ) -> Reduced:
        """Add the partial sums of all workers; the root slot takes the mean gradient.

        Args:
            table: The slot of each node, on this worker.
            step: Steps committed before this one.
            vote, digest, times: Vote, replica digest and times of this worker, for the others.

        Raises:
            Aborted: The generation is over.
            PlansDiffer: Workers have followed different plans.
            JobError: No shard called `backward`, or shards logged different names.
        """
        self.publish(table)
        self._times[self._group.rank] = torch.tensor(times)
        if self._group.network is not None:
            return self._reduce_over(self._group.network, step, vote, digest)
        votes = self._group.barrier(ReduceTag.PARTIALS, step, vote)
        # All workers have written their rows; from here on slots are read-only, until the commit.
        self._on_partials_complete()
        term = self._begin_result(self.published(), step, votes, self._local_times())
        # No two workers write to the same block, so they need no lock.
        for index in self._own_blocks:
            self._norms[index] = self._reduce_block(index, term)
        digests = self._group.barrier(ReduceTag.REDUCED, step, digest)
        # All blocks are in the root slot, and all squares in the table: every worker computes the
        # same norm from them.
        return replace(self.reduced(), replica_digests=digests)

    def _reduce_over(self, network: Network, step: int, vote: int, digest: int) -> Reduced:
        """Reduce with workers on several hosts."""
        group = self._group
        local = {}
        # Evaluated in this order: after the first barrier the rows of this host are written.
        own = Contribution(
            votes=group.local_barrier(ReduceTag.PARTIALS, step, vote),
            replica_digests=group.local_barrier(ReduceTag.DIGESTS, step, digest),
            step_times=self._local_times(),
        )
        tables = {rank: self._tables[rank].tolist() for rank in group.local}
        # The highest nodes that this host has whole: fewer sums to send, and still those of the
        # tree.
        for node in tree.frontier(tables.values(), self._num_leaves):
            term = local[node] = tree.reduction(tables, self._num_leaves, node)
            own.sums[node] = None if term is None else self._summary(term)
        found: list[tree.Term] = []
        digests: tuple[int, ...] = ()

        def on_contributions(others: Mapping[int, Contribution]) -> None:
            nonlocal digests
            self._on_partials_complete()
            everyone = {network.host: own, **others}
            votes = by_rank(network.hosts, {h: each.votes for h, each in everyone.items()})
            digests = by_rank(
                network.hosts, {h: each.replica_digests for h, each in everyone.items()}
            )
            times = by_rank(network.hosts, {h: each.step_times for h, each in everyone.items()})
            found.append(self._begin_result(self._with_remote(tables, others), step, votes, times))

        def reduce_block(index: int, parts: Mapping[tuple[int, int], torch.Tensor]) -> float:
            self._received = parts
            return self._reduce_block(index, found[0])

        blocks = Blocks(
            layout=self._layout,
            root=self._root.blocks,
            local_sum=lambda node, index: self._sum_of(local[node], index),
            reduce=reduce_block,
            squares=self._norms,
        )
        exchange = HostExchange(network, self._cells, blocks, own, on_contributions)
        exchange.run(ReduceTag.PARTIALS.doing.format(step=step, next=step + 1))
        # This worker has the blocks of its lanes; after the barrier its host has those of all.
        group.local_barrier(ReduceTag.REDUCED, step)
        return replace(self.reduced(), replica_digests=digests)

    def _with_remote(
        self, tables: Mapping[int, Sequence[int]], others: Mapping[int, Contribution]
    ) -> dict[int, Sequence[int]]:
        """The tables of this host's workers, and one for each other host, under its first rank:
        there, a node's slot is the node.
        """
        self._remote.clear()
        network = self._group.network
        everyone = dict(tables)
        assert network is not None
        for host, contribution in others.items():
            rank = network.hosts.ranks[host][0]
            row = [tree.ABSENT] * tree.num_nodes(self._num_leaves)
            for node, summary in contribution.sums.items():
                row[node] = tree.EMPTY if summary is None else node
                if summary is not None:
                    self._remote[rank, node] = summary
            everyone[rank] = row
        return everyone

    def _local_times(self) -> tuple[StepTimes, ...]:
        """Times that the workers of this host have measured, once they have passed `PARTIALS`."""
        rows = self._times.tolist()
        return tuple(StepTimes(*rows[rank]) for rank in self._group.local)

    def _begin_result(
        self,
        tables: Mapping[int, Sequence[int]],
        step: int,
        votes: tuple[int, ...],
        times: tuple[StepTimes, ...],
    ) -> tree.Term:
        """Term of all partial sums, whose small parts become the result of the step."""
        # Before the tables are read: with two plans, some shard was computed by no worker.
        if len({each.plan for each in times}) > 1:
            raise PlansDiffer
        term = check_summed(step, tree.reduction(tables, self._num_leaves))
        # Weights, losses and flags are added along the same tree, by each worker for itself.
        stats, used, first = self._stats_of(term)
        weight = float(stats[WEIGHT])
        check_weight(step, weight)
        means = (stats / weight).tolist()
        names = read_names(first.names)
        self._reduced = Reduced(
            weight=weight,
            loss=means[LOSS],
            logged=dict(zip(names, means[LOGGED:], strict=False)),
            used=used,
            kept=[tensor.clone() for tensor in first.kept],
            norm=math.nan,
            votes=votes,
            replica_digests=(),
            step_times=times,
        )
        return term

    def _summary(self, term: tree.Term) -> Summary:
        stats, used, first = self._stats_of(term)
        return Summary(stats=stats, used=used, names=first.names, kept=first.kept)

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
        # By the host's share and not by `_own_blocks`: every host has the whole root slot.
        for index in self._share():
            if index < self._layout.num_gradient_blocks:
                self._root.blocks[index].mul_(factor)
        self._group.local_barrier(ReduceTag.CLIP, step)

    def _stats_of(self, term: tree.Term) -> tuple[torch.Tensor, torch.Tensor, Slot | Summary]:
        """The statistics and flags of a term, and its leftmost slot."""
        if isinstance(term, tree.Partial):
            remote = self._remote.get((term.rank, term.slot))
            slot = remote or self._partial_sum(term.rank, term.slot)
            return slot.stats.clone(), slot.used.clone(), slot
        stats, used, first = self._stats_of(term.left)
        right_stats, right_used, other = self._stats_of(term.right)
        check_names(are_equal=torch.equal(first.names, other.names))
        return stats.add_(right_stats), used.logical_or_(right_used), first

    def _reduce_block(self, index: int, term: tree.Term) -> float:
        """Write one block of the mean to the root; returns the sum of its squares."""
        assert self._reduced is not None, "the term has not been taken"
        out = self._root.blocks[index]
        weight = self._reduced.weight
        scratch = self._scratch_of(out.dtype, 0)[: len(out)]
        total = self._sum(term, index, scratch, 1)
        # Where weights add up to 1, but for rounding, the sum is the mean.
        if not math.isclose(weight, 1, rel_tol=1e-12):
            total = torch.mul(total, 1 / weight, out=scratch)
        copy_past_cache(out, total)
        return square(total) if index < self._layout.num_gradient_blocks else 0.0

    def _sum_of(self, term: tree.Term | None, index: int) -> torch.Tensor:
        """One block of a term: in place for a partial sum, else in memory of its own."""
        assert term is not None, "a sum that weighs nothing is not sent"
        block = self._root.blocks[index]
        return self._sum(term, index, torch.empty_like(block), 1)

    def _sum(self, term: tree.Term, index: int, scratch: torch.Tensor, depth: int) -> torch.Tensor:
        """The elements of one block of a term: in place for a partial sum, else in `scratch`."""
        if isinstance(term, tree.Partial):
            # A worker that lends has one partial sum only, so the block is of this term.
            lent = self.lending.block(index) if term.rank == self._group.rank else None
            if lent is not None:
                return lent
            if (term.rank, term.slot) in self._remote:
                return self._received[self._host_of(term.rank), term.slot]
            return self._partial_sum(term.rank, term.slot).blocks[index]
        # The left sum may be in `scratch`, so the right one gets memory of its own, one a level.
        left = self._sum(term.left, index, scratch, depth)
        for_right = self._scratch_of(scratch.dtype, depth)[: len(scratch)]
        right = self._sum(term.right, index, for_right, depth + 1)
        return torch.add(left, right, out=scratch)

    def _host_of(self, rank: int) -> int:
        assert self._group.network is not None
        return self._group.network.hosts.host_of(rank)

    def _scratch_of(self, dtype: torch.dtype, depth: int) -> torch.Tensor:
        # Kept from step to step: a reduction allocates nothing.
        key = (dtype, depth)
        if key not in self._scratch:
            self._scratch[key] = torch.empty(BLOCK, dtype=dtype)
            assert self._scratch[key].data_ptr() % ALIGNMENT == 0
        return self._scratch[key]


def by_rank(hosts: GroupHosts, values: Mapping[int, Sequence[T]]) -> tuple[T, ...]:
    """Values of the workers of all hosts, in the order of ranks."""
    found = {
        rank: value
        for host, own in values.items()
        for rank, value in zip(hosts.ranks[host], own, strict=True)
    }
    return tuple(found[rank] for rank in sorted(found))
