"""Whoever holds which shards, the same pairs are added in the same order."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.step import tree
from holdfast.core.step.plan import Plan


def formula_of(num_shards, counts, empty):
    """The sum that workers with `counts` shards each would form, as nested pairs of shard ids."""
    plan, tables, slots = Plan(counts=counts), [], {}
    for rank in range(plan.world_size):
        table = [tree.ABSENT] * tree.num_nodes(num_shards)
        free = list(range(tree.max_partials(num_shards)))

        def merge(left, right, rank=rank, free=free):
            slots[rank, left] = (slots[rank, left], slots.pop((rank, right)))
            free.append(right)

        for shard in plan.shards_of(rank):
            slot = tree.EMPTY
            if shard not in empty:
                slot = free.pop()
                slots[rank, slot] = shard
            tree.carry(table, tree.leaf(shard, num_shards), slot, merge)
        tables.append(table)

    def expand(term):
        if isinstance(term, tree.Add):
            return (expand(term.left), expand(term.right))
        return None if term is None else slots[term.rank, term.slot]

    return expand(tree.reduction(dict(enumerate(tables)), num_shards))


@st.composite
def splits(draw):
    num_shards = draw(st.integers(1, 40))
    world = draw(st.integers(1, 6))
    cuts = sorted(
        draw(st.lists(st.integers(0, num_shards), min_size=world - 1, max_size=world - 1))
    )
    bounds = [0, *cuts, num_shards]
    counts = tuple(hi - lo for lo, hi in itertools.pairwise(bounds))
    empty = draw(st.sets(st.integers(0, num_shards - 1)))
    return num_shards, counts, empty


@given(splits())
def test_the_formula_depends_on_the_shards_alone(split):
    num_shards, counts, empty = split
    assert formula_of(num_shards, counts, empty) == formula_of(num_shards, (num_shards,), empty)


def test_the_formula_is_the_balanced_tree():
    assert formula_of(4, (1, 3), set()) == ((0, 1), (2, 3))
    assert formula_of(5, (5,), set()) == (((0, 1), (2, 3)), 4)


def test_an_empty_shard_leaves_its_sibling_untouched():
    assert formula_of(4, (2, 2), {1}) == (0, (2, 3))
    assert formula_of(4, (2, 2), {0, 1, 2, 3}) is None


def test_an_aligned_plan_leaves_one_partial_sum_a_worker():
    for rank in range(2):
        table = [tree.ABSENT] * tree.num_nodes(8)
        for shard in Plan.even(8, 2).shards_of(rank):
            tree.carry(table, tree.leaf(shard, 8), 0, lambda left, right: None)
        assert sum(slot != tree.ABSENT for slot in table) == 1


def test_the_leaves_of_a_node_are_the_shards_below_it():
    assert [tree.leaves(node, 5) for node in (1, 2, 3, 5, 12)] == [
        range(5), range(4), range(4, 5), range(2, 4), range(4, 5)
    ]  # fmt: skip
    assert tree.leaves(tree.leaf(3, 5), 5) == range(3, 4)


def test_the_most_partial_sums_are_those_of_a_binary_counter():
    assert [tree.partials_needed(range(n), 8) for n in range(9)] == [0, 1, 2, 2, 3, 3, 3, 3, 4]
    assert tree.partials_needed(range(4, 8), 8) == 3


@given(splits())
def test_partial_sums_never_outnumber_their_slots(split):
    num_shards, counts, _ = split
    limit = tree.max_partials(num_shards)
    for rank in range(len(counts)):
        table, held = [tree.ABSENT] * tree.num_nodes(num_shards), 0
        for shard in Plan(counts=counts).shards_of(rank):
            held = sum(slot != tree.ABSENT for slot in table) + 1
            assert held <= limit
            tree.carry(table, tree.leaf(shard, num_shards), 0, lambda left, right: None)


def table_of(num_shards, *shards, empty=()):
    """The table of a worker that has computed these shards: a sum's slot is its first shard."""
    table = [tree.ABSENT] * tree.num_nodes(num_shards)
    for shard in shards:
        slot = tree.EMPTY if shard in empty else shard
        tree.carry(table, tree.leaf(shard, num_shards), slot, lambda left, right: None)
    return table


def entries(table):
    return {node: entry for node, entry in enumerate(table) if entry != tree.ABSENT}


@pytest.mark.parametrize(
    ("num_shards", "span", "most"),
    [(1, 1, 3), (2, 2, 3), (3, 4, 5), (4, 4, 5), (5, 8, 7), (8, 8, 7), (9, 16, 9)],
)
def test_a_tree_has_the_next_power_of_two_leaves_and_two_sums_a_level(num_shards, span, most):
    assert tree.span(num_shards) == span
    assert tree.num_nodes(num_shards) == 2 * span
    assert tree.leaf(0, num_shards) == span
    assert tree.leaf(num_shards - 1, num_shards) == span + num_shards - 1
    assert tree.max_partials(num_shards) == most


def test_the_leaves_of_a_node_of_padding_are_none():
    assert [list(tree.leaves(node, 5)) for node in (6, 7, 13)] == [[4], [], []]


@pytest.mark.parametrize(
    ("shards", "needed", "left"),
    [
        ([], 0, 0),
        ([3], 1, 1),
        ([0, 1], 2, 1),
        ([1, 2], 2, 2),
        ([0, 2, 4, 6], 4, 4),
        ([0, 2, 1, 3], 3, 1),
        (range(7), 3, 3),
        (range(1, 7), 4, 4),
        (range(1, 8), 5, 3),
        (range(8), 4, 1),
    ],
)
def test_partial_sums_are_needed_and_left_by_the_order_of_shards(shards, needed, left):
    assert tree.partials_needed(shards, 8) == needed
    assert tree.partials_left(shards, 8) == left


def test_siblings_are_added_left_first_whichever_is_finished_last():
    merged = []

    def merge(left, right):
        merged.append((left, right))

    table = [tree.ABSENT] * 8
    for node, slot in ((5, 0), (4, 1), (7, 2)):
        tree.carry(table, node, slot, merge)
    assert (merged, entries(table)) == ([(1, 0)], {2: 1, 7: 2})
    tree.carry(table, 6, 3, merge)
    assert (merged, entries(table)) == ([(1, 0), (3, 2), (1, 3)], {1: 1})


@pytest.mark.parametrize(
    ("empty", "held"),
    [
        ({0}, {2: 1}),
        ({1}, {2: 0}),
        ({0, 1}, {2: tree.EMPTY}),
    ],
)
def test_an_empty_sibling_is_added_to_nothing(empty, held):
    merged = []
    table = [tree.ABSENT] * 8
    for shard in (0, 1):
        slot = tree.EMPTY if shard in empty else shard
        tree.carry(table, 4 + shard, slot, lambda *pair: merged.append(pair))
    assert (merged, entries(table)) == ([], held)


def test_a_shard_that_is_finished_twice_is_refused():
    with pytest.raises(AssertionError, match="node 5 was finished twice"):
        table_of(4, 1, 1)


def test_sums_are_numbered_in_the_order_of_their_nodes():
    assert tree.numbered([tree.ABSENT, 7, tree.EMPTY, 0, tree.ABSENT, 3]) == [
        tree.ABSENT, 0, tree.EMPTY, 1, tree.ABSENT, 2
    ]  # fmt: skip


def test_a_node_is_covered_by_itself_or_a_sum_above_it():
    table = table_of(8, 0, 1, 6, empty={6})  # nodes 4 and 14
    assert [node for node in range(1, 16) if tree.covers(table, node)] == [4, 8, 9, 14]
    whole = table_of(4, *range(4))
    assert all(tree.covers(whole, node) for node in range(1, 8))
    assert not any(tree.covers(table_of(4), node) for node in range(1, 8))


@pytest.mark.parametrize(
    ("num_shards", "workers", "passed_on"),
    [
        (8, [], []),
        (8, [[]], []),
        (8, [range(8)], [1]),
        (8, [range(4), range(4, 8)], [1]),
        (8, [[0], [1]], [4]),  # siblings meet here
        (8, [[0], [2]], [8, 10]),
        (8, [[0], [1], [2]], [4, 10]),
        (8, [[1, 2], [3]], [9, 5]),
        (8, [[4, 5, 6], [7]], [3]),
        (8, [range(1, 7)], [9, 5, 6, 14]),
        (8, [range(3), range(3, 8)], [1]),
        (5, [range(5)], [1]),
        (5, [range(4), [4]], [1]),  # what is missing of node 3 is padding
        (5, [[4]], [3]),
        (5, [range(1, 4)], [9, 5]),
        (6, [[4], [5]], [3]),
        (6, [[5]], [13]),
        (3, [[2]], [3]),
        (3, [[1]], [5]),
        (1, [[0]], [1]),
        (1, [[]], []),
    ],
)
def test_the_frontier_is_the_highest_nodes_that_workers_have_together(
    num_shards, workers, passed_on
):
    tables = [table_of(num_shards, *shards) for shards in workers]
    assert tree.frontier(iter(tables), num_shards) == passed_on


def test_empty_shards_belong_to_the_frontier():
    tables = [table_of(4, 0, empty={0}), table_of(4, 1)]
    assert tree.frontier(tables, 4) == [2]


def test_a_reduction_may_end_at_any_node():
    tables = {3: table_of(4, 0, 2), 1: table_of(4, 1, 3)}
    low = tree.Add(tree.Partial(3, 0), tree.Partial(1, 1))
    high = tree.Add(tree.Partial(3, 2), tree.Partial(1, 3))
    assert tree.reduction(tables, 4, 2) == low
    assert tree.reduction(tables, 4, 3) == high
    assert tree.reduction(tables, 4, 6) == tree.Partial(3, 2)
    assert tree.reduction(tables, 4) == tree.Add(low, high)


def test_a_reduction_leaves_out_what_is_empty():
    tables = {0: table_of(5, 0, 1, empty={0, 1}), 1: table_of(5, 2, 3, 4, empty={3})}
    assert tree.reduction(tables, 5) == tree.Add(tree.Partial(1, 2), tree.Partial(1, 4))
    assert tree.reduction(tables, 5, 4) is None
    assert tree.reduction(tables, 5, 2) == tree.Partial(1, 2)
    assert tree.reduction(tables, 5, 7) is None  # padding


@pytest.mark.parametrize("missing", range(5))
def test_a_reduction_without_a_shard_is_refused(missing):
    tables = {0: table_of(5, *({*range(5)} - {missing}))}
    with pytest.raises(AssertionError, match=f"shard {missing} was not computed"):
        tree.reduction(tables, 5)
