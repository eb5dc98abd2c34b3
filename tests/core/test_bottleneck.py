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


def found(*workers, counts, memory=0.5, has_network=False):
    finder = BottleneckFinder(has_network=has_network)
    results = [finder.observe(workers, counts, memory) for _ in range(STEPS)]
    assert results[:-1] == [None] * (STEPS - 1)
    return results[-1]


@pytest.mark.parametrize(
    ("more_ms", "name", "share"),
    [
        ({}, "compute-bound", 0.90),
        ({"data": 40}, "input-bound", 0.29),
        ({"reduce": 40, "wait_reduce": 20}, "reduction-bound", 0.39),
        ({"collect": 30}, "shard-bound", 0.23),
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


def test_shards_may_be_too_coarse_to_divide():
    bottleneck = found(times(), times(forward=20, backward=40), counts=(1, 1))
    assert bottleneck.name == "coarse shards"


def test_full_memory_is_named_if_nothing_takes_time():
    assert found(times(), counts=(16,), memory=0.93).name == "near the memory limit"
    assert found(times(data=50), counts=(16,), memory=0.93).name == "input-bound"
