"""Whoever holds which shards, the same pairs are added in the same order."""

import itertools

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
