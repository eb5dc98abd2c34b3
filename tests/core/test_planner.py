"""The planner against all plans, on small cases, and its time on a large one."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.balance.planner import (
    ALIGNED_SLACK,
    Cost,
    aligned,
    fastest,
    level,
    makespan,
    within,
)
from holdfast.core.step import tree
from holdfast.core.step.plan import Plan

COSTS = st.builds(
    Cost,
    st.floats(0, 10),
    st.floats(0.01, 10),
    st.integers(1, 9),
)


def plans(num_workers, num_shards):
    for cuts in itertools.combinations(range(1, num_shards), num_workers - 1):
        ends = (0, *cuts, num_shards)
        yield tuple(b - a for a, b in itertools.pairwise(ends))


@given(st.lists(COSTS, min_size=1, max_size=4), st.data())
def test_no_plan_is_faster(costs, data):
    num_shards = data.draw(st.integers(len(costs), sum(cost.cap for cost in costs)))

    counts = fastest(costs, num_shards)

    assert sum(counts) == num_shards
    assert all(1 <= count <= cost.cap for cost, count in zip(costs, counts, strict=True))
    allowed = (
        plan
        for plan in plans(len(costs), num_shards)
        if all(count <= cost.cap for cost, count in zip(costs, plan, strict=True))
    )
    assert makespan(costs, counts) == min(makespan(costs, plan) for plan in allowed)
    assert level(costs, num_shards) <= makespan(costs, counts) * (1 + 1e-12)


@pytest.mark.parametrize("num_shards", [7, 16, 1600])
def test_equal_workers_get_equal_shares(num_shards):
    costs = [Cost(0.1, 1.0, num_shards)] * 4
    counts = fastest(costs, num_shards)
    assert max(counts) - min(counts) <= 1


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.data())
def test_a_plan_changes_only_where_it_exceeds_a_cap_and_stays_nearly_even(caps, data):
    counts = [data.draw(st.integers(1, sum(caps) // len(caps))) for _ in caps]
    found = within(counts, caps)
    assert sum(found) == sum(counts)
    assert all(1 <= count <= cap for count, cap in zip(found, caps, strict=True))
    if all(count <= cap for count, cap in zip(counts, caps, strict=True)):
        assert found == tuple(counts)
        return
    most = max(found)
    assert all(n >= most - 1 or n == cap for n, cap in zip(found, caps, strict=True))


@given(st.lists(COSTS, min_size=1, max_size=6), st.data())
def test_an_aligned_plan_is_nearly_as_fast_and_leaves_no_more_partial_sums(costs, data):
    num_shards = data.draw(st.integers(len(costs), sum(cost.cap for cost in costs)))
    first_host = data.draw(st.integers(1, len(costs)))
    hosts = [range(first_host), range(first_host, len(costs))]
    best = fastest(costs, num_shards)

    counts = aligned(costs, best, [host for host in hosts if host])

    assert sum(counts) == num_shards
    assert all(1 <= count <= cost.cap for cost, count in zip(costs, counts, strict=True))
    assert makespan(costs, counts) <= ALIGNED_SLACK * makespan(costs, best) * (1 + 1e-12)


def partial_sums(counts):
    plan = Plan(counts=counts)
    return sum(
        tree.partials_left(plan.shards_of(rank), plan.num_shards) for rank in range(len(counts))
    )


@pytest.mark.parametrize(
    ("seconds", "shards"), [(0.0, 1), (4.9, 1), (5.0, 2), (6.9, 2), (11.0, 5), (13.0, 5)]
)
def test_a_worker_has_at_least_one_shard_and_at_most_its_cap(seconds, shards):
    cost = Cost(1.0, 2.0, 5)
    assert cost.shards_within(seconds) == shards
    assert (cost.seconds(0), cost.seconds(3)) == (1.0, 7.0)


@pytest.mark.parametrize(
    ("costs", "num_shards", "end"),
    [
        ([(0, 1, 8)], 5, 5),
        ([(0, 1, 8), (0, 1, 8)], 8, 4),
        ([(0, 1, 8), (0, 1, 8)], 7, 3.5),
        ([(0, 1, 8), (0, 3, 8)], 8, 6),
        ([(2, 1, 9), (0, 1, 9)], 8, 5),  # (5 - 2) + 5
        ([(0, 1, 2), (0, 1, 8)], 8, 6),  # 2 are the most of the first
        ([(0, 1, 2), (0, 2, 3)], 5, 6),  # all that they can
        ([(0, 1, 2), (0, 1, 3), (0, 2, 9)], 10, 10),
        ([(0, 1, 8), (0, 7.2966700610976725, 5), (3.5, 10, 4)], 17, 43.5),  # with rounded slopes
        ([(0, 1, 9), (9, 1, 9)], 6, 5),  # the second has one, and ends later whatever the plan
    ],
)
def test_divided_shards_would_end_together(costs, num_shards, end):
    assert level([Cost(*cost) for cost in costs], num_shards) == pytest.approx(end)


@pytest.mark.parametrize(
    ("costs", "num_shards", "counts"),
    [
        ([(0, 1, 8), (0, 1, 8)], 2, (1, 1)),
        ([(0, 1, 8), (0, 3, 8)], 8, (6, 2)),
        ([(4, 1, 9), (0, 1, 9)], 8, (2, 6)),
        ([(9, 1, 9), (0, 1, 9)], 8, (1, 7)),
        ([(0, 1, 2), (0, 9, 8)], 8, (2, 6)),
        ([(0, 1, 3), (0, 1, 3)], 6, (3, 3)),
    ],
)
def test_a_plan_is_the_fastest_one(costs, num_shards, counts):
    assert fastest([Cost(*cost) for cost in costs], num_shards) == counts


def zeros(number):
    """Zeros at the end of a number in binary."""
    return (number & -number).bit_length()


@pytest.mark.parametrize("slack", [1.0, 1.02, 1.1, 1.5, 3.0])
@pytest.mark.parametrize("slower", [1.0, 1.5, 2.7])
def test_two_workers_are_cut_at_the_roundest_number_that_both_have_time_for(slower, slack):
    for num_shards in (2, 7, 32, 45):
        costs = [Cost(0.0, 1.0, num_shards), Cost(0.1, slower, num_shards)]
        best = fastest(costs, num_shards)
        most = [cost.shards_within(makespan(costs, best) * slack) for cost in costs]
        cuts = range(max(1, num_shards - most[1]), min(most[0], num_shards - 1) + 1)
        cut = max(cuts, key=zeros)
        assert aligned(costs, best, [range(2)], slack) == (cut, num_shards - cut)
        assert aligned(costs, best, [range(1), range(1, 2)], slack) == (cut, num_shards - cut)


def test_hosts_are_cut_first():
    costs = [Cost(0.0, 1.0, 64)] * 3 + [Cost(0.0, 1.2, 64)]
    best = fastest(costs, 64)
    assert best == (17, 17, 16, 14)
    assert aligned(costs, best, [range(2), range(2, 4)], 1.12) == (16, 16, 18, 14)
    assert aligned(costs, best, [range(1), range(1, 4)], 1.12) == (16, 16, 18, 14)
    assert aligned(costs, best, [range(4)], 1.0) == (16, 17, 17, 14)
    assert partial_sums((16, 16, 18, 14)) < partial_sums(best)


def test_a_plan_of_another_number_of_workers_is_refused():
    costs = [Cost(0.0, 1.0, 8)] * 3
    for call in (lambda: makespan(costs, (4, 4)), lambda: within((4, 4), (8, 8, 8))):
        with pytest.raises(ValueError, match="zip"):
            call()
