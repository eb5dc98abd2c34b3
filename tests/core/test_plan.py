"""The plan covers every shard once, whatever the world."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.plan import Plan
from holdfast.errors import JobError


@given(st.integers(1, 300), st.data())
def test_even_plan_gives_every_shard_to_one_rank_and_shares_differ_by_one(num_shards, data):
    world = data.draw(st.integers(1, 2 * num_shards))
    plan = Plan.even(num_shards, world)
    given_out = [shard for rank in range(world) for shard in plan.shards_of(rank)]
    assert given_out == list(range(num_shards))
    assert max(plan.counts) - min(plan.counts) <= 1
    assert (plan.num_shards, plan.world_size) == (num_shards, world)


@pytest.mark.parametrize("shares", [[4, 3], [4, 4, 0], [9, -1], []])
def test_shares_that_do_not_add_up_are_refused(shares):
    with pytest.raises(JobError, match="must give 2 workers 8 shards"):
        Plan.of_counts(shares, 8, 2)


def test_a_rank_may_owe_nothing():
    plan = Plan.of_counts([8, 0], 8, 2)
    assert plan.shards_of(1) == range(8, 8)
