"""The fixed binary tree over shard ids in which a step's gradient is summed.

Floating-point addition is not associative, so *which* sums are formed decides the bits of the
result. Here they are formed along one tree that depends on the number of shards alone. Nodes are
numbered as in a heap: the root is 1, the children of `i` are `2i` and `2i + 1`, and shard `k` is
the leaf `span + k`, where `span` is the next power of two:

    shards 0..3:            1
                        ┌───┴───┐
                        2       3
                      ┌─┴─┐   ┌─┴─┐
                      4   5   6   7      leaf 4 is shard 0

A worker adds siblings as soon as it holds both, as a binary counter carries, so the partial sums
left on it are the fewest nodes that cover its shards. `reduction` then finds how the partial
sums of all workers combine into the root. Whichever worker computed a shard, the same pairs are
added.

A shard without samples weighs nothing: it is EMPTY, and its sibling is the sum of both.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

ROOT: Final = 1
ABSENT: Final = -1
"""In a table: this worker has no partial sum for the node."""
EMPTY: Final = -2
"""In a table: the node is accounted for and weighs nothing."""


@dataclass(frozen=True, slots=True)
class Partial:
    """A partial sum that is complete: slot `slot` of worker `rank`."""

    rank: int
    slot: int


@dataclass(frozen=True, slots=True)
class Add:
    """The sum of two terms, left operand first."""

    left: Term
    right: Term


Term = Partial | Add


def span(num_shards: int) -> int:
    """The smallest power of two that is not below `num_shards`: the tree's leaf count."""
    return 1 << (num_shards - 1).bit_length()


def num_nodes(num_shards: int) -> int:
    """The length of a table with one entry a node (entry 0 is unused)."""
    return 2 * span(num_shards)


def leaf(shard: int, num_shards: int) -> int:
    """The node of one shard."""
    return span(num_shards) + shard


def leaves(node: int, num_shards: int) -> range:
    """The shards below a node."""
    first = node
    end = node + 1
    while first < span(num_shards):
        first = 2 * first
        end = 2 * end
    start = span(num_shards)
    return range(first - start, min(end - start, num_shards))


def max_partials(num_shards: int) -> int:
    """The most partial sums that one worker holds at a time, the one in the making included.

    A contiguous range of leaves is covered by at most two nodes a level.
    """
    return 2 * max(1, span(num_shards).bit_length() - 1) + 1


def partials_needed(leaves: Iterable[int], num_shards: int) -> int:
    """The most partial sums that a worker holds at a time if it computes `leaves`, in order."""
    table = [ABSENT] * num_nodes(num_shards)
    held = 0
    most = 0

    def merge(_left: int, _right: int) -> None:
        nonlocal held
        held -= 1

    for number in leaves:
        held += 1
        most = max(most, held)
        carry(table, leaf(number, num_shards), number, merge)
    return most


def partials_left(leaves: Iterable[int], num_shards: int) -> int:
    """The partial sums that a worker has left once it has computed `leaves`."""
    table = [ABSENT] * num_nodes(num_shards)
    for number in leaves:
        carry(table, leaf(number, num_shards), number, lambda *_: None)
    return sum(entry != ABSENT for entry in table)


def carry(table: list[int], node: int, slot: int, merge: Callable[[int, int], None]) -> None:
    """Enter a finished node into a worker's table and add siblings while both are there.

    Args:
        table: Slot, ABSENT or EMPTY by node; changed in place.
        node: The node just finished.
        slot: The slot of its sum, or EMPTY.
        merge: `merge(left, right)` adds slot `right` into slot `left` and frees `right`.
    """
    assert table[node] == ABSENT, f"node {node} was finished twice"
    # As a binary counter carries: the node and its sibling become their parent, and so on.
    table[node] = slot
    while node != ROOT and table[node ^ 1] != ABSENT:
        left = table[node & ~1]
        right = table[node | 1]
        # A sum with nothing is the other one, so no slot is added or freed.
        if EMPTY not in (left, right):
            merge(left, right)
        table[node & ~1] = table[node | 1] = ABSENT
        node >>= 1
        table[node] = right if left == EMPTY else left


def numbered(table: Sequence[int]) -> list[int]:
    """The table with its sums numbered from 0, in the order of their nodes."""
    numbers = itertools.count()
    return [next(numbers) if entry >= 0 else entry for entry in table]


def covers(table: Sequence[int], node: int) -> bool:
    """True if a worker with this table has accounted for `node`, alone or in a sum above it."""
    while node >= ROOT:
        if table[node] != ABSENT:
            return True
        node >>= 1
    return False


def frontier(tables: Iterable[Sequence[int]], num_shards: int) -> list[int]:
    """The highest nodes whose shards some workers have all accounted for: the sums that these
    workers together pass on.

    Args:
        tables: The tables of these workers.
        num_shards: Shards in the tree.

    Returns:
        Nodes from left to right, no two of which share a shard.
    """
    rows = list(tables)
    first_padding = leaf(num_shards, num_shards)

    def highest(node: int) -> list[int] | None:
        """The nodes at and below `node`; None where it holds no shard."""
        # Some worker holds the node itself: nothing below it is passed on.
        if any(row[node] != ABSENT for row in rows):
            return [node]
        if node >= first_padding - num_shards:
            return [] if node < first_padding else None
        left = highest(2 * node)
        right = highest(2 * node + 1)
        if left is None:
            return right
        # Both children are complete here, if on different workers: their sum can be passed on.
        both = left == [2 * node] and right in (None, [2 * node + 1])
        return [node] if both else [*left, *(right or [])]

    return highest(ROOT) or []


def reduction(
    tables: Mapping[int, Sequence[int]], num_shards: int, root: int = ROOT
) -> Term | None:
    """Term by which the partial sums of all workers combine into one node.

    Args:
        tables: The table of each rank: slot, ABSENT or EMPTY by node.
        num_shards: Shards in the tree.
        root: The node.

    Returns:
        The node's term; None where every shard below it is empty.
    """
    first_leaf = span(num_shards)
    num_leaves = num_shards

    def term(node: int) -> Term | None:
        # A partial sum that exists is used whole: it was formed along this tree already.
        for rank, table in tables.items():
            if table[node] != ABSENT:
                return None if table[node] == EMPTY else Partial(rank, table[node])
        if node >= first_leaf:
            assert node >= first_leaf + num_leaves, f"shard {node - first_leaf} was not computed"
            return None
        left = term(2 * node)
        right = term(2 * node + 1)
        # A side without samples adds nothing, not even a zero.
        if left is None or right is None:
            return right if left is None else left
        return Add(left, right)

    return term(root)
