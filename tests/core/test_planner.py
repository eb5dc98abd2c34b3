"""The planner against all plans, on small cases, and its time on a large one."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.balance.planner import ALIGNED_SLACK, Cost, aligned, fastest, makespan, within
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
