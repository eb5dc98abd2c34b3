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


@pytest.mark.parametrize(
    ("parts", "name", "share"),
    [
        ({"data": 10, "forward": 21}, "input-bound", 0.10),
        ({"data": 9, "forward": 22}, "compute-bound", 0.82),
        ({"reduce": 20, "forward": 15}, "reduction-bound", 0.20),
        ({"reduce": 8, "wait_reduce": 12, "forward": 15}, "reduction-bound", 0.20),
        ({"reduce": 8, "wait_reduce": 11, "forward": 16}, "compute-bound", 0.76),
        ({"checkpoint": 5, "forward": 25}, "checkpoint-bound", 0.05),
        ({"checkpoint": 4, "forward": 26}, "compute-bound", 0.86),
        ({"optimizer": 32, "forward": 0}, "compute-bound", 0.60),
        ({"evaluate": 32, "forward": 0, "optimizer": 0}, "compute-bound", 0.60),
    ],
)
def test_a_phase_counts_from_its_share_on(parts, name, share):
    bottleneck = found(times(**parts), counts=(1,))
    assert (bottleneck.name, bottleneck.share) == (name, pytest.approx(share, abs=0.01))
    name = name.replace("reduction", "link")
    assert found(times(**parts), counts=(1,), has_network=True).name == name


@pytest.mark.parametrize(
    ("memory", "name"), [(0.89, "compute-bound"), (0.9, "near the memory limit")]
)
def test_memory_counts_from_nine_tenths_on(memory, name):
    bottleneck = found(times(), counts=(1,), memory=memory)
    assert bottleneck.name == name
    assert bottleneck.share == (memory if memory >= 0.9 else pytest.approx(0.9, abs=0.01))


@pytest.mark.parametrize(
    ("counts", "share"), [((21, 19), None), ((20, 18), 0.05), ((18, 20), 0.05), ((11, 9), 0.09)]
)
def test_a_plan_is_imbalanced_if_another_one_saves_a_twentieth(counts, share):
    workers = [StepTimes(shards_ns=n * MS, forward_ns=n * MS) for n in counts]
    bottleneck = found(*workers, counts=counts, least_shards=40)
    assert bottleneck.name == ("imbalanced" if share else "compute-bound")
    assert bottleneck.share == pytest.approx(share or 1.0, abs=0.005)


@pytest.mark.parametrize(
    ("step_ms", "least", "text"),
    [
        (69, 1, "1 shard instead of 8 would save 10% "),
        (71, 1, None),
        (32, 2, "2 shards instead of 8 would save 19% "),
        (32, 3, "4 shards instead of 8 would save 12% "),
        (32, 4, "4 shards instead of 8 would save 12% "),
        (20, 5, None),
    ],
)
def test_fewer_shards_save_their_gradients(step_ms, least, text):
    worker = StepTimes(shards_ns=step_ms * MS, collect_ns=8 * MS, forward_ns=(step_ms - 8) * MS)
    bottleneck = found(worker, counts=(8,), least_shards=least)
    assert bottleneck.name == ("shard-bound" if text else "compute-bound")
    assert text is None or bottleneck.text.startswith(text)
    # A run may have more than its most shards, and merged ones cost nothing.
    fewer = found(worker, counts=(8,), least_shards=least, most_shards=4)
    assert fewer == bottleneck
    assert found(worker, counts=(8,), least_shards=least, most_shards=0).name == "compute-bound"


def test_the_worker_that_finishes_last_decides():
    slow, waiting = times(forward=120), times(data=60)
    assert found(slow, waiting, counts=(8, 8), is_dynamic=True).name == "compute-bound"
    slow, waiting = times(data=90), times()
    assert found(slow, waiting, counts=(8, 8), is_dynamic=True).name == "input-bound"


def test_each_finding_is_about_its_own_steps():
    finder = BottleneckFinder(
        has_network=False, least_shards=1, most_shards=8, is_dynamic=False, ranks=[0], caps={}
    )
    workers = [times(data=60)] * STEPS + [times()] * STEPS + [times(checkpoint=60)] * STEPS
    found = [finder.observe([each], [1], 0.5) for each in workers]
    names = [each.name for each in found if each]
    assert names == ["input-bound", "compute-bound", "checkpoint-bound"]
    assert [number for number, each in enumerate(found, 1) if each] == [20, 40, 60]


def test_the_plan_of_the_last_step_is_the_one_to_improve():
    finder = BottleneckFinder(
        has_network=False, least_shards=20, most_shards=20, is_dynamic=False, ranks=[0, 1], caps={}
    )
    for counts in [(10, 10)] * (STEPS - 1) + [(15, 5)]:
        workers = [StepTimes(shards_ns=n * MS, forward_ns=n * MS) for n in counts]
        bottleneck = finder.observe(workers, counts, 0.5)
    assert bottleneck.name == "imbalanced"
    assert bottleneck.share == pytest.approx(1 / 3)


def test_a_worker_without_shards_has_no_cost():
    assert found(times(), StepTimes(), counts=(16, 0)).name == "compute-bound"
    assert found(times(data=60), StepTimes(), counts=(16, 0)).name == "input-bound"


def test_the_rank_that_lacks_most_memory_is_named():
    workers = times(), times(forward=1, backward=2), times(forward=5, backward=10)
    bottleneck = found(*workers, counts=(2, 2, 1), caps={2: 2, 3: 1}, is_dynamic=True)
    assert bottleneck.text.startswith("rank 2 has memory for 2 shards: with more, ")
    bottleneck = found(times(), times(forward=3, backward=6), counts=(3, 1), caps={2: 1})
    assert bottleneck.text.startswith("rank 2 has memory for 1 shard: with more, ")


def test_no_number_is_advised_with_which_one_worker_has_memory_for_no_shard():
    few = StepTimes(shards_ns=100 * MS, collect_ns=90 * MS, forward_ns=10 * MS)
    many = StepTimes(shards_ns=1000 * MS, collect_ns=900 * MS, forward_ns=100 * MS)
    workers = {"counts": (1, 7), "is_dynamic": True, "most_shards": 8}
    assert found(few, many, **workers).text.startswith("2 shards instead of 8 ")
    assert found(few, many, **workers, caps={1: 1}).name == "memory-bound"
