"""The plan covers every shard once, whatever the world."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.step.plan import Plan, WorkItem, plan_step
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


def test_more_workers_than_shards_are_refused_with_the_way_out():
    with pytest.raises(JobError, match=r"workers=9 .* shards=8, .* start at most 8 workers"):
        plan_step(8, 9, None)


def test_a_generation_with_all_workers_follows_the_job_and_a_smaller_one_is_even():
    assert plan_step(8, 2, [6, 2]).counts == (6, 2)
    assert plan_step(8, 2, [6, 2], 2).counts == (6, 2)
    assert plan_step(8, 2, [6, 2], 1).counts == (8,)
    assert plan_step(8, 3, None, 2).counts == (4, 4)


def test_survivors_of_a_job_with_idle_workers_may_be_more_than_its_shards():
    assert plan_step(1, 3, [0, 0, 1], 2).counts == (1, 0)


def test_work_items_are_shards_or_one_leaf_a_worker():
    plan = Plan.even(4, 2)
    assert plan.work_items(1) == [WorkItem.of_shard(2), WorkItem.of_shard(3)]
    assert plan.merged_work_items(1, 2) == [WorkItem(1, range(2, 4))]


def test_rank_0_accounts_for_the_leaves_of_workers_that_a_merged_plan_lacks():
    assert Plan.even(4, 2).merged_work_items(0, 4) == [
        WorkItem(0, range(2)), WorkItem(2, range(0)), WorkItem(3, range(0)),
    ]  # fmt: skip
