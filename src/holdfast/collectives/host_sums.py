"""Host sums: the sums of several hosts are added in the arena of each, block by block.

    all at once       shards ─▶ commit: exchange
    while autograd    shards ─▶ begin ─▶ backward of the last one ─▶ commit: the rest
                                  └──── exchange, in a thread ─────────┘

`exchange` has the order of the messages.

Before any block, hosts tell each other which sums they pass on, and their weights: their outlines.
With those of all, each host derives the same order of additions and the same weight of the whole
sum. Each block is added by the host that owns its cell, and sent to the others as a mean.

A block may be sent while the worker still computes others. If it has changed after it was said to
be final, the host says so in its contribution, which comes last. Then all hosts exchange all blocks
once more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from holdfast.collectives.barrier_tags import ReduceTag
from holdfast.collectives.block_sums import BlockSums
from holdfast.collectives.device_sums import DeviceSums
from holdfast.collectives.exchange import (
    AllComputed,
    Blocks,
    Cells,
    Computed,
    Contribution,
    HostExchange,
    Outline,
    Reduce,
)
from holdfast.collectives.group import Group
from holdfast.collectives.network import GroupHosts, Network
from holdfast.collectives.reduction import (
    Place,
    PlansDiffer,
    ReductionMemory,
    Sums,
    check_summed,
    check_weight,
)
from holdfast.collectives.slot import WEIGHT
from holdfast.core.step import tree
from holdfast.core.step.plan import spread_cells

Tables = Mapping[int, Sequence[int]]
"""The table of each worker by rank; see `core.step.tree`."""
Terms = Mapping[int, tree.Term | None]
"""The term of each node; None for one that weighs nothing."""


class HostSums:
    """One worker's part in the sums of several hosts.

    Args:
        group: The workers.
        memory: Memory that the workers of this host share.
        num_leaves: Leaves of the tree.
        blocks: Adds blocks in the arena.
        on_device: Has the sums of this host; None if they are in the arena.

    Attributes:
        own_blocks: The blocks of this worker's lanes.
        is_valid: False if a block has changed that `begin` was told to be final. Then all hosts
            exchange all blocks once more.
    """

    def __init__(
        self,
        group: Group,
        memory: ReductionMemory,
        num_leaves: int,
        blocks: BlockSums,
        on_device: DeviceSums | None,
    ) -> None:
        self._group = group
        self._memory = memory
        self._num_leaves = num_leaves
        self._blocks = blocks
        self._sums: Sums = blocks if on_device is None else on_device
        self._is_here = on_device is None
        self._cells: Cells = []
        self._begun: HostExchange | None = None
        self.own_blocks: Sequence[int] = ()
        self.is_valid = True

    def divide(self, hosts: GroupHosts) -> Cells:
        """Divide the blocks over the lanes of hosts."""
        sizes = [block.nbytes for block in self._memory.root.blocks]
        self._cells = spread_cells(sizes, len(hosts.ranks), hosts.num_lanes)
        return self._cells

    def begin(self, table: Sequence[int], step: int, plan: int, computed: Computed) -> None:
        """Begin to exchange the blocks of a step, in the background, while the worker still
        computes some of them. Only for a worker that is the only one of its host.

        Args:
            table: The slot of each node; their weights are in the slots.
            step: Steps committed before this one.
            plan: A digest of the plan that the worker follows.
            computed: Says which blocks change no more; see `look_again`.
        """
        network = self._group.network
        assert network is not None, "no host to exchange with"
        tables = {self._group.rank: table}
        begun = self._new(network, step, tables, (plan,), computed, network.note_computed)
        self._begun = begun
        begun.run(lambda flows: network.begin(flows, activity(step)))

    @property
    def has_begun(self) -> bool:
        """True if the blocks of a step are exchanged already."""
        return self._begun is not None

    def look_again(self) -> None:
        """Note that blocks have become final."""
        if self._group.network is not None:
            self._group.network.wake()

    def cancel(self) -> None:
        """Forget what was begun in an earlier generation."""
        self._begun = None
        self.is_valid = True

    def exchange(
        self,
        network: Network,
        step: int,
        own: Contribution,
        tables: Tables,
        on_computed: Callable[[], object],
    ) -> dict[int, Contribution]:
        """Exchange what is left of a step; returns the contributions of the others.

        Args:
            network: The connections.
            step: Steps committed before.
            own: Contribution of this host.
            tables: The tables of its workers.
            on_computed: Called once all others have computed all shards.

        Raises:
            Aborted: The generation is over.
            PlansDiffer: Workers have followed different plans.
            JobError: No shard has a gradient.
        """
        exchange, self._begun = self._begun, None
        if exchange is not None:
            exchange.contribute(own)
            network.finish(activity(step), on_computed)
        else:
            exchange = self._exchange_all(network, step, own, tables, on_computed)
        # All hosts have the contributions of all, so all begin again or none does.
        if not all(each.is_valid for each in (own, *exchange.contributions.values())):
            own.is_valid = self.is_valid = True
            exchange = self._exchange_all(network, step, own, tables, on_computed)
        network.waits = exchange.waits
        if not exchange.is_of_one_plan:
            raise PlansDiffer
        return exchange.contributions

    def _exchange_all(
        self,
        network: Network,
        step: int,
        own: Contribution,
        tables: Tables,
        on_computed: Callable[[], object],
    ) -> HostExchange:
        plans = sorted({each.plan for each in own.step_times})
        exchange = self._new(network, step, tables, plans, AllComputed(), on_computed)
        exchange.contribute(own)
        exchange.run(lambda flows: network.exchange(flows, activity(step)))
        return exchange

    def _new(
        self,
        network: Network,
        step: int,
        tables: Tables,
        plans: Sequence[int],
        computed: Computed,
        on_computed: Callable[[], object],
    ) -> HostExchange:
        hosts = network.hosts
        local = local_terms(tables, self._num_leaves)
        # Read now: while blocks are exchanged, the slots are written to.
        weights = {
            (rank, slot): float(self._memory.partial_sum(rank, slot).stats[WEIGHT])
            for rank, table in tables.items()
            for slot in table
            if slot >= 0
        }
        of_nodes = {n: None if t is None else _weight_of(t, weights) for n, t in local.items()}
        outline = Outline(plans=plans, weights=of_nodes)
        local_sum = self._sums.of_terms(local, self.own_blocks)

        num_threads = torch.get_num_threads()

        def begin(others: Mapping[int, Outline]) -> Reduce:
            torch.set_num_threads(num_threads)  # a new thread has those of the machine
            # Sums of a device are read as those of another host: the slots here lack gradients.
            outlines = others if self._is_here else {network.host: outline, **others}
            sums = {host: each.weights for host, each in outlines.items()}
            rows = rows_of(hosts, tables if self._is_here else {}, sums, self._num_leaves)
            term = check_summed(step, tree.reduction(rows, self._num_leaves))
            remote = {
                (hosts.ranks[host][0], node): weight
                for host, each in outlines.items()
                for node, weight in each.weights.items()
                if weight is not None
            }
            weight = _weight_of(term, weights | remote)
            check_weight(step, weight)

            def reduce_block(index: int, parts: Mapping[Place, torch.Tensor]) -> float:
                received = {(hosts.ranks[host][0], n): part for (host, n), part in parts.items()}
                for node in () if self._is_here else outline.nodes:
                    received[hosts.ranks[network.host][0], node] = local_sum(node, index)
                return self._blocks.reduce(index, term, weight, received)

            return reduce_block

        blocks = Blocks(
            layout=self._memory.layout,
            root=self._memory.root.blocks,
            computed=computed,
            local_sum=local_sum,
            squares=self._memory.norms,
        )
        return HostExchange(network, self._cells, blocks, outline, begin, on_computed)


def activity(step: int) -> str:
    """Activity of a worker in a reduction, in words."""
    return ReduceTag.PARTIALS.doing.format(step=step, next=step + 1)


def local_terms(tables: Tables, num_leaves: int) -> dict[int, tree.Term | None]:
    """The terms of the sums that a host passes on, from the tables of its workers."""
    # The highest nodes that it has whole: fewer sums to send, and still those of the tree.
    nodes = tree.frontier(tables.values(), num_leaves)
    return {node: tree.reduction(tables, num_leaves, node) for node in nodes}


def rows_of(
    hosts: GroupHosts, tables: Tables, sums: Mapping[int, Mapping[int, object]], num_leaves: int
) -> dict[int, Sequence[int]]:
    """The tables of this host's workers, and one for each host that passes on sums, under its first
    rank: there, a node's slot is the node.

    Args:
        hosts: The hosts.
        tables: The tables.
        sums: Sums that each host passes on by node; None for one that weighs nothing.
        num_leaves: Leaves of the tree.
    """
    everyone = dict(tables)
    for host, nodes in sums.items():
        row = [tree.ABSENT] * tree.num_nodes(num_leaves)
        for node, found in nodes.items():
            row[node] = tree.EMPTY if found is None else node
        everyone[hosts.ranks[host][0]] = row
    return everyone


def _weight_of(term: tree.Term, weights: Mapping[Place, float]) -> float:
    """The weight of a term, added along the tree."""
    if isinstance(term, tree.Partial):
        return weights[term.rank, term.slot]
    return _weight_of(term.left, weights) + _weight_of(term.right, weights)
