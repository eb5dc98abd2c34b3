"""Bottleneck: what limits a run gets its name and its number."""

import pytest

from holdfast.core.balance.bottleneck import STEPS, BottleneckFinder
from holdfast.core.balance.times import StepTimes

MS = 10**6
HEALTHY = {"forward": 30, "backward": 60, "data": 1, "collect": 2, "reduce": 5, "optimizer": 2}


def times(**more_ms):
    phases = {f"{name}_ns": value * MS for name, value in (HEALTHY | more_ms).items()}
    shards = sum(phases[f"{name}_ns"] for name in ("data", "forward", "backward", "collect"))
    return StepTimes(shards_ns=shards, rest_ns=2 * MS, **phases)


def found(*workers, counts, memory=0.5, has_network=False, is_dynamic=False, **fields):
    finder = BottleneckFinder(
        has_network=has_network,
        least_shards=fields.get("least_shards", len(workers)),
        most_shards=fields.get("most_shards", 64),
        is_dynamic=is_dynamic,
        ranks=range(1, len(workers) + 1),
        caps=fields.get("caps", {}),
    )
    results = [finder.observe(workers, counts, memory) for _ in range(STEPS)]
    assert results[:-1] == [None] * (STEPS - 1)
    return results[-1]


@pytest.mark.parametrize(
    ("more_ms", "name", "share"),
    [
        ({}, "compute-bound", 0.90),
        ({"data": 40}, "input-bound", 0.29),
        ({"reduce": 40, "wait_reduce": 20}, "reduction-bound", 0.39),
        ({"collect": 30}, "shard-bound", 0.21),
        ({"checkpoint": 20}, "checkpoint-bound", 0.17),
        ({"checkpoint": 20, "data": 40}, "input-bound", 0.25),
    ],
)
def test_the_largest_share_names_the_run(more_ms, name, share):
    bottleneck = found(times(**more_ms), times(**more_ms), counts=(8, 8))
    assert bottleneck.name == name
    assert bottleneck.share == pytest.approx(share, abs=0.01)
    assert f"{bottleneck.share:.0%}" in bottleneck.text


def test_a_slow_sum_of_several_hosts_is_due_to_the_link():
    slow = times(wait_reduce=60)
    assert found(slow, slow, counts=(8, 8), has_network=True).name == "link-bound"


def test_unlike_workers_with_even_shares_are_imbalanced():
    bottleneck = found(times(), times(forward=120, backward=240), counts=(8, 8))
    assert bottleneck.name == "imbalanced"
    assert bottleneck.share == pytest.approx(0.58, abs=0.03)  # 8 and 8 shards; 13 and 3 are best


def test_a_plan_that_follows_measured_times_is_not_advised_again():
    workers = times(), times(forward=60, backward=120)
    assert found(*workers, counts=(8, 8)).name == "imbalanced"
    assert found(*workers, counts=(8, 8), is_dynamic=True).name == "compute-bound"
    assert found(*workers, counts=(8, 8), most_shards=0).name == "imbalanced"  # merged shards too


def test_shards_may_be_too_coarse_to_divide():
    slower, faster = times(), times(forward=10, backward=20)
    bottleneck = found(slower, faster, counts=(1, 1), is_dynamic=True)
    assert bottleneck.name == "coarse shards"
    assert "4 shards instead of 2 would save up to 43%" in bottleneck.text
    # unless each has too few samples, or is too slow, or workers merge theirs
    assert found(slower, faster, counts=(1, 1), most_shards=3).name == "compute-bound"
    slow = times(collect=60), times(forward=10, backward=20, collect=60)
    assert found(*slow, counts=(1, 1)).name == "compute-bound"
    assert found(slower, faster, counts=(1, 1), most_shards=0).name == "compute-bound"


def test_fewer_shards_are_named_that_save_more_than_a_coarser_split_costs():
    slower, faster = times(collect=60), times(forward=15, backward=30, collect=60)
    assert "4 shards instead of 8 would save" in found(slower, faster, counts=(3, 5)).text
    assert found(slower, faster, counts=(1, 1)).name == "compute-bound"  # each needs one
    # Two workers are away, and will need one each.
    bottleneck = found(times(collect=60), counts=(8,), least_shards=3)
    assert "4 shards instead of 8 would save" in bottleneck.text


def test_full_memory_is_named_if_nothing_takes_time():
    assert found(times(), counts=(16,), memory=0.93).name == "near the memory limit"
    assert found(times(data=50), counts=(16,), memory=0.93).name == "input-bound"


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_a_worker_without_memory_for_more_shards_is_named_with_its_cap(is_dynamic):
    few, many = times(forward=9, backward=18), times()
    bottleneck = found(few, many, counts=(3, 13), caps={1: 3}, is_dynamic=is_dynamic)
    assert bottleneck.name == "memory-bound"
    assert (
        bottleneck.text
        == "rank 1 has memory for 3 shards: with more, a step would take 24% less time"
    )
    # The best plan has no use for more, or the worker is slow.
    slow = times(forward=120, backward=240)
    assert found(slow, many, counts=(3, 13), caps={1: 3}, is_dynamic=True).name == "compute-bound"


def test_a_number_of_shards_that_caps_do_not_allow_is_not_advised():
    slower, faster = times(collect=60), times(forward=15, backward=30, collect=60)
    workers = {"counts": (3, 5), "is_dynamic": True}
    assert found(slower, faster, **workers).name == "shard-bound"
    # 4 shards would be twice as large, so that only 1 and 2 of them are known to fit.
    bottleneck = found(slower, faster, **workers, caps={1: 3, 2: 5})
    assert bottleneck.text.startswith("rank 2 has memory for 5 shards: ")
