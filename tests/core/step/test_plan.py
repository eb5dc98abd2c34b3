"""The plan covers every shard once, whatever the world."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.step.plan import (
    Plan,
    WorkItem,
    cells,
    lanes_of,
    plan_step,
    spread_cells,
)
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
    assert WorkItem.of_shard(2) == WorkItem(2, range(2, 3))
    assert plan.work_items(1) == [WorkItem.of_shard(2), WorkItem.of_shard(3)]
    assert plan.merged_work_items(1, 2) == [WorkItem(1, range(2, 4))]


def test_rank_0_accounts_for_the_leaves_of_workers_that_a_merged_plan_lacks():
    assert Plan.even(4, 2).merged_work_items(0, 4) == [
        WorkItem(0, range(2)), WorkItem(2, range(0)), WorkItem(3, range(0)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("num_shards", "world_size", "counts"),
    [(8, 2, (4, 4)), (7, 3, (3, 2, 2)), (8, 3, (3, 3, 2)), (2, 4, (1, 1, 0, 0)), (0, 2, (0, 0))],
)
def test_the_first_ranks_of_an_even_plan_have_the_rest(num_shards, world_size, counts):
    assert Plan.even(num_shards, world_size).counts == counts


def test_as_many_workers_as_shards_have_one_each():
    assert plan_step(3, 3, None).counts == (1, 1, 1)


def test_the_digest_tells_plans_apart_on_every_worker():
    digests = {Plan(counts=counts).digest for counts in ((1, 2), (2, 1), (12,), (1, 2, 0), ())}
    assert len(digests) == 5
    assert Plan(counts=(6, 2)).digest == Plan.of_counts([6, 2], 8, 2).digest
    assert all(0 <= digest < 1 << 32 for digest in digests)


@pytest.mark.parametrize(
    ("sizes", "num_hosts", "num_lanes", "borders"),
    [
        ([1, 1, 1, 1], 2, 1, [[(0, 2)], [(2, 4)]]),
        ([1, 1, 1, 1], 1, 2, [[(0, 2), (2, 4)]]),
        ([1] * 8, 2, 2, [[(0, 2), (2, 4)], [(4, 6), (6, 8)]]),
        ([1] * 6, 3, 1, [[(0, 2)], [(2, 4)], [(4, 6)]]),
        ([1, 2, 1], 2, 1, [[(0, 2)], [(2, 3)]]),  # the block across the cut is left of it
        ([3, 1, 1, 1], 2, 1, [[(0, 1)], [(1, 4)]]),
        ([10, 1, 1], 3, 1, [[(0, 1)], [(1, 1)], [(1, 3)]]),
        ([1, 1, 10], 3, 1, [[(0, 3)], [(3, 3)], [(3, 3)]]),
        ([5], 2, 1, [[(0, 1)], [(1, 1)]]),
        ([5, 7], 1, 1, [[(0, 2)]]),
        ([], 2, 1, [[(0, 0)], [(0, 0)]]),
    ],
)
def test_blocks_are_cut_by_their_bytes_into_contiguous_cells(sizes, num_hosts, num_lanes, borders):
    expected = [[range(*border) for border in lanes] for lanes in borders]
    assert cells(sizes, num_hosts, num_lanes) == expected


@given(st.lists(st.integers(1, 99), max_size=30), st.integers(1, 5), st.integers(1, 4))
def test_every_block_is_in_one_cell(sizes, num_hosts, num_lanes):
    for divide in (cells, spread_cells):
        divided = divide(sizes, num_hosts, num_lanes)
        assert [len(lanes) for lanes in divided] == [num_lanes] * num_hosts
        blocks = [block for lanes in divided for lane in lanes for block in lane]
        assert sorted(blocks) == list(range(len(sizes)))


@pytest.mark.parametrize(
    ("sizes", "num_hosts", "num_lanes", "blocks"),
    [
        ([1] * 5, 2, 1, [[[4, 2, 0]], [[3, 1]]]),
        ([1] * 8, 2, 2, [[[7, 3], [6, 2]], [[5, 1], [4, 0]]]),
        ([3, 1, 1, 5], 2, 1, [[[3]], [[2, 1, 0]]]),  # the cell with the fewest bytes is next
        ([1, 2, 3], 1, 1, [[[2, 1, 0]]]),
        ([4], 1, 2, [[[0], []]]),
        ([], 2, 1, [[[]], [[]]]),
    ],
)
def test_spread_cells_take_turns_from_the_last_block(sizes, num_hosts, num_lanes, blocks):
    assert spread_cells(sizes, num_hosts, num_lanes) == blocks


@pytest.mark.parametrize(
    ("num_workers", "num_lanes", "lanes"),
    [
        (1, 3, [[0, 1, 2]]),
        (2, 4, [[0, 2], [1, 3]]),
        (2, 3, [[0, 2], [1]]),
        (3, 3, [[0], [1], [2]]),
    ],
)
def test_the_workers_of_a_host_serve_each_lane_once(num_workers, num_lanes, lanes):
    served = [list(lanes_of(worker, num_workers, num_lanes)) for worker in range(num_workers)]
    assert served == lanes
