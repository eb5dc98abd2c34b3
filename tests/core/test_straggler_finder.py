"""Which worker is a straggler, and when it may return."""

import pytest

from holdfast.core.balance.planner import Cost
from holdfast.core.balance.stragglers import SLOW_STEPS, Straggler, StragglerFinder


def costs_of(*per_shard_s, fixed_s=0.0):
    return [Cost(fixed_s, each, 8) for each in per_shard_s]


def found(*per_shard_s, num_shards=8, steps=SLOW_STEPS, fixed_s=0.0):
    finder = StragglerFinder(range(4, 9), num_shards)
    return [finder.observe(costs_of(*per_shard_s, fixed_s=fixed_s)) for _ in range(steps)]


def test_a_straggler_is_found_after_some_steps_with_what_decides_its_return():
    *before, last = found(0.1, 1.25, 0.3, num_shards=8, fixed_s=0.5)
    assert before == [None] * (SLOW_STEPS - 1)
    assert last == Straggler(
        rank=5,
        reason="a shard takes it 6.2 times as long",  # as the median of the others
        threshold_s=pytest.approx(0.4),
        step_s=pytest.approx(0.5 + 6 * 0.1),
    )


@pytest.mark.parametrize("slow", range(3))
def test_the_slowest_is_the_straggler_wherever_it_is(slow):
    speeds = [1.0, 1.0, 1.0]
    speeds[slow] = 20.0
    assert found(*speeds)[-1].rank == 4 + slow


def test_it_takes_several_times_as_long_as_the_others():
    assert found(0.25, 1.0, num_shards=4)[-1] is not None  # exactly as many times
    assert found(0.25, 0.999, num_shards=3)[-1] is None
    assert found(1.0, 1.0, 1.0)[-1] is None


def test_it_leaves_only_if_the_others_are_as_fast_without_it():
    assert found(1.0, 8.0, num_shards=8)[-1] is not None  # 8 s with it, too
    assert found(1.0, 7.0, num_shards=8)[-1] is None  # 7 shards and 1 take 7 s
    assert found(1.0, 9.0, num_shards=8)[-1].step_s == 8.0


def test_a_fast_step_begins_the_count_again():
    finder = StragglerFinder((0, 1), 8)
    slow, fast = costs_of(0.1, 2.0), costs_of(0.1, 0.3)
    for _ in range(2):
        assert [finder.observe(slow) for _ in range(SLOW_STEPS - 1)] == [None] * (SLOW_STEPS - 1)
        assert finder.observe(fast) is None
    assert [finder.observe(slow) is None for _ in range(SLOW_STEPS + 1)][-2:] == [False, False]
