"""The exact all-reduce: adds partial sums along the tree over shard ids, wherever they are held.

    publish: table ─▶ PARTIALS ─▶ small parts; own share of the sums ─▶ REDUCED ─▶ the whole mean

Every worker publishes a table of its partial sums: the slot of each node of the tree. Once all have
done so, each reads all tables and knows how the sums combine. It adds its share of the gradient,
and what is small, such as weights and losses, by itself. `Sums` says where gradients are:
`block_sums` adds them in the arena, `device_sums` on the devices of the workers.

No slot changes, so the partial sums are still there if a worker is lost before the commit.

On several hosts, each host first learns which sums the others pass on, and the owner of a block
receives them; see `exchange`. Then every host has the whole result in a root slot of its own.
"""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import torch

from holdfast.arena.tensors import read_names
from holdfast.collectives.algorithms.vector_sums import VectorSums
from holdfast.collectives.barrier_tags import ReduceTag
from holdfast.collectives.block_sums import BlockSums
from holdfast.collectives.device_exchange import DeviceExchange, Mean
from holdfast.collectives.device_sums import DeviceSums
from holdfast.collectives.exchange import (
    Cells,
    Contribution,
    Summary,
    exchange_contributions,
)
from holdfast.collectives.group import Group
from holdfast.collectives.host_sums import HostSums, activity, local_terms, rows_of
from holdfast.collectives.network import GroupHosts, Network
from holdfast.collectives.reduction import (
    Place,
    PlansDiffer,
    Reduced,
    ReductionMemory,
    Sums,
    check_summed,
    check_weight,
    share,
)
from holdfast.collectives.slot import LOGGED, LOSS, WEIGHT, Slot, check_names
from holdfast.core.balance.times import StepTimes
from holdfast.core.step import tree
from holdfast.core.step.plan import cells

T = TypeVar("T")


class TreeReducer:
    """Sums slots over all workers of a group.

    Args:
        group: The workers.
        memory: Memory that they share.
        num_leaves: Leaves of the tree.
        on_partials_complete: Called in each reduction once the partial sums of all workers are
            complete.
        on_device: Adds gradients where the worker computes; None to add them in the arena.

    Attributes:
        blocks: Adds in the arena; the sums of several hosts are always added there.
        hosts: Adds the sums of several hosts in the arena.
    """

    def __init__(
        self,
        group: Group,
        memory: ReductionMemory,
        num_leaves: int,
        on_partials_complete: Callable[[], object] = lambda: None,
        on_device: DeviceSums | None = None,
    ) -> None:
        self._on_partials_complete = on_partials_complete
        self._group = group
        self._layout = memory.layout
        self._num_leaves = num_leaves
        self._partial_sum = memory.partial_sum
        self._root = memory.root
        # The memory is for as many leaves as the run can have; a process group may have fewer.
        self._tables = memory.tables[:, : tree.num_nodes(num_leaves)]
        self._norms = memory.norms
        self._times = memory.times
        self.blocks = BlockSums(group.rank, memory)
        self._on_device = on_device
        self._sums: Sums = self.blocks if on_device is None else on_device
        self._vectors: VectorSums | None = None
        self._reduced: Reduced | None = None
        self.hosts = HostSums(group, memory, num_leaves, self.blocks, on_device)
        self._cells: list[list[range]] = []  # of devices
        self._remote: dict[Place, Summary] = {}
        self.assign_blocks()

    def assign_blocks(self) -> None:
        """Assign the blocks to the current members."""
        network = self._group.network
        local = self._group.local
        shares: dict[int, Sequence[int]] = {rank: self._share(rank) for rank in local}
        # On several hosts a block belongs to one of them, and there to the worker of its lane.
        if network is not None:
            hosts = network.hosts
            sizes = [block.nbytes for block in self._root.blocks]
            self._cells = cells(sizes, len(hosts.ranks), hosts.num_lanes)
            divided: Cells = self.hosts.divide(hosts)
            if self._on_device is not None and self._on_device.messages is not None:
                divided = self._cells
            shares = {
                rank: sorted(
                    i for host in divided for lane in hosts.lanes(rank) for i in host[lane]
                )
                for rank in local
            }
        self.hosts.own_blocks = shares[self._group.rank]
        self._sums.assign(shares)

    def _share(self, rank: int) -> range:
        local = self._group.local
        return share(len(self._layout.blocks), local.index(rank), len(local))

    def add_vectors(self, vectors: VectorSums | None) -> None:
        """Add the gradient by an algorithm from now on; along the tree if that is None.

        Each worker has one partial sum at most, and has published all of it.
        """
        self._vectors = vectors

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
        members = Contribution(votes=votes, step_times=self._local_times())
        term, weight = self._begin_result(self.published(), step, members)
        if self._vectors is None:
            self._sums.add_up(term, weight)
        else:
            self._vectors.add_up(step, weight)
        digests = self._group.barrier(ReduceTag.REDUCED, step, digest)
        # All shares are complete, and all squares in the table: every worker gets the same mean.
        return replace(self.reduced(), replica_digests=digests)

    def _reduce_over(self, network: Network, step: int, vote: int, digest: int) -> Reduced:
        """Reduce with workers on several hosts."""
        group = self._group
        # Evaluated in this order: after the first barrier the rows of this host are written.
        own = Contribution(
            votes=group.local_barrier(ReduceTag.PARTIALS, step, vote),
            replica_digests=group.local_barrier(ReduceTag.DIGESTS, step, digest),
            step_times=self._local_times(),
            is_valid=self.hosts.is_valid,
        )
        tables = {rank: self._tables[rank].tolist() for rank in group.local}
        local = local_terms(tables, self._num_leaves)
        own.sums.update(
            {n: None if term is None else self._summary(term) for n, term in local.items()}
        )
        if self._on_device is not None and self._on_device.messages is not None:
            self._exchange_on_device(network, step, own, local)
        elif self._vectors is not None:
            others = exchange_contributions(network, own, self._layout, activity(step))
            self._on_partials_complete()
            _, weight = self._begin_with(network, step, tables, own, others)
            self._vectors.add_up(step, weight)
        else:
            others = self.hosts.exchange(network, step, own, tables, self._on_partials_complete)
            self._begin_with(network, step, tables, own, others)
        # This worker has the blocks of its lanes; after the barrier its host has those of all.
        group.local_barrier(ReduceTag.REDUCED, step)
        return self.reduced()

    def _begin_with(
        self,
        network: Network,
        step: int,
        tables: Mapping[int, Sequence[int]],
        own: Contribution,
        others: Mapping[int, Contribution],
    ) -> tuple[tree.Term, float]:
        """Call `_begin_result` with the contributions of all hosts."""
        everyone = {network.host: own, **others}
        # Sums of a device are read as those of another host: the slots here lack gradients.
        is_here = self._on_device is None
        contributions = others if is_here else everyone
        sums = {host: each.sums for host, each in contributions.items()}
        rows = rows_of(network.hosts, tables if is_here else {}, sums, self._num_leaves)
        self._remote = {
            (network.hosts.ranks[host][0], node): summary
            for host, contribution in contributions.items()
            for node, summary in contribution.sums.items()
            if summary is not None
        }
        return self._begin_result(rows, step, _merged(network.hosts, everyone))

    def _exchange_on_device(
        self,
        network: Network,
        step: int,
        own: Contribution,
        local: Mapping[int, tree.Term | None],
    ) -> None:
        """Exchange sums between devices; needs all contributions first."""
        device = self._on_device
        assert device is not None, "no sums of a device"
        assert device.messages is not None, "no way between devices"
        what = activity(step)
        others = exchange_contributions(network, own, self._layout, what)
        self._on_partials_complete()
        term, weight = self._begin_with(network, step, {}, own, others)
        sent = {host: each.nodes for host, each in {network.host: own, **others}.items()}
        mean = Mean(term=term, weight=weight, nodes=sent, local=local)
        DeviceExchange(network, self._cells, device, device.messages).run(mean, what)

    def _local_times(self) -> tuple[StepTimes, ...]:
        """Times that the workers of this host have measured, once they have passed `PARTIALS`."""
        rows = self._times.tolist()
        return tuple(StepTimes(*rows[rank]) for rank in self._group.local)

    def _begin_result(
        self, tables: Mapping[int, Sequence[int]], step: int, members: Contribution
    ) -> tuple[tree.Term, float]:
        """Term and weight of all partial sums, whose small parts become the result of the step."""
        # Before the tables are read: with two plans, some shard was computed by no worker.
        if len({each.plan for each in members.step_times}) > 1:
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
            votes=members.votes,
            replica_digests=members.replica_digests,
            step_times=members.step_times,
        )
        return term, weight

    def _summary(self, term: tree.Term) -> Summary:
        stats, used, first = self._stats_of(term)
        return Summary(stats=stats, used=used, names=first.names, kept=first.kept)

    def reduced(self) -> Reduced:
        """The result of the newest reduction. It is whole for a worker that was aborted at the last
        barrier, too, if any member has passed that barrier.
        """
        assert self._reduced is not None, "no step was reduced"
        self._sums.collect()
        is_here = self._on_device is None
        norm = math.sqrt(float(self._norms.sum())) if is_here else math.nan
        return replace(self._reduced, norm=norm)

    def scale_gradient(self, factor: float, step: int) -> None:
        """Multiply the reduced gradient by `factor`; each worker scales its own blocks.

        Raises:
            Aborted: The generation is over.
        """
        # By the host's share and not by `_own_blocks`: every host has the whole root slot.
        for index in self._share(self._group.rank):
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


def _merged(hosts: GroupHosts, contributions: Mapping[int, Contribution]) -> Contribution:
    """The values of the workers of all hosts, in the order of ranks; without sums."""
    ranks = [rank for host in contributions for rank in hosts.ranks[host]]
    order = sorted(range(len(ranks)), key=ranks.__getitem__)

    def in_order(of_hosts: Iterable[Sequence[T]]) -> tuple[T, ...]:
        values = list(itertools.chain.from_iterable(of_hosts))
        return tuple(values[at] for at in order)

    return Contribution(
        votes=in_order(each.votes for each in contributions.values()),
        replica_digests=in_order(each.replica_digests for each in contributions.values()),
        step_times=in_order(each.step_times for each in contributions.values()),
    )
