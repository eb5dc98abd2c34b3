"""Slowdowns: a worker that becomes slower is found within a few steps, with the reason."""

import random

import pytest

from holdfast.core.balance.slowdowns import (
    CERTAIN,
    LEAST_USUAL,
    NEW_USUAL,
    Slowdown,
    Slowdowns,
    SlowReason,
)
from holdfast.core.balance.stragglers import Straggler
from holdfast.core.balance.times import StepTimes

MS = 10**6


class Run:
    """Steps of two workers with 4 shards each that take 10 ms, of which 1 ms is reading. A worker
    that is throttled `while_reading` waits for its samples meanwhile.
    """

    def __init__(self, noise=0.1, seed=0):
        self.slowdowns, self.noise = Slowdowns(), noise
        self.chance = random.Random(seed)

    def step(self, **more_ms):
        """One step, in which the second worker spends so much more time on each shard."""
        times = [self._times({}), self._times(more_ms)]
        return self.slowdowns.observe([0, 1], times, [4, 4])

    def _times(self, more_ms):
        factor = self.chance.uniform(1 - self.noise, 1 + self.noise)
        parts = {"data": 1 * factor, "processor": 9 * factor, "throttled": 0.0}
        parts |= {name: parts.get(name, 0.0) + more for name, more in more_ms.items()}
        in_ns = {f"{name}_ns": int(4 * value * MS) for name, value in parts.items()}
        waited, while_reading = in_ns.pop("contention_ns", 0), in_ns.pop("while_reading_ns", 0)
        shards_ns = sum(in_ns.values()) + waited
        in_ns["throttled_ns"] += while_reading
        return StepTimes(shards_ns=shards_ns, **in_ns)


@pytest.mark.parametrize(
    ("more_ms", "reason"),
    [
        ({"processor": 8}, "compute"),
        ({"data": 8}, "data"),
        ({"data": 8, "processor": 3}, "data"),
        ({"throttled": 8}, "throttling"),
        ({"data": 8, "while_reading": 7}, "throttling"),
        ({"contention": 8}, "contention"),
    ],
)
@pytest.mark.parametrize("seed", range(10))
def test_a_slow_worker_is_named_within_five_steps_with_its_reason(more_ms, reason, seed):
    run = Run(seed=seed)
    assert not any(run.step() for _ in range(20))
    found = [each for _ in range(5) for each in run.step(**more_ms)]
    assert [(each.rank, each.reason.value) for each in found] == [(1, reason)]
    assert 1.5 < found[0].factor < 2.5
    healed = [each for _ in range(5) for each in run.step()]
    assert [(each.rank, each.reason) for each in healed] == [(1, None)]


def test_a_slowdown_has_one_reason_until_another_one_lasts():
    run = Run()
    for _ in range(20):
        run.step()
    found = [
        each.reason.value
        for step in range(60)
        for each in run.step(**({"throttled": 60} if step % 6 == 0 else {"contention": 20}))
    ]
    assert len(found) == 1
    found = [each.reason.value for _ in range(10) for each in run.step(data=20)]
    assert found == ["data"]


@pytest.mark.parametrize("seed", range(10))
def test_healthy_steps_name_no_worker(seed):
    run = Run(noise=0.15, seed=seed)
    assert not any(run.step() for _ in range(500))


def test_single_slow_steps_name_no_worker():
    run = Run()
    assert not any(run.step(processor=30 * (number % 10 == 9)) for number in range(200))


def test_a_change_that_slows_all_workers_names_none():
    slowdowns = Slowdowns()
    for factor in [1] * 20 + [2] * 100:
        times = [StepTimes(shards_ns=factor * 40 * MS, processor_ns=factor * 40 * MS)] * 2
        assert not slowdowns.observe([0, 1], times, [4, 4])


def test_a_straggler_that_has_slowed_down_says_why():
    run = Run()
    reason = "a shard takes it 9.0 times as long"
    straggler = Straggler(rank=1, reason=reason, threshold_s=1, step_s=1)
    for _ in range(20):
        run.step()
    assert straggler.because(run.slowdowns.reason_of(1)) == straggler
    assert run.slowdowns.reason_of(7) is None, "a worker that was never a member"
    for _ in range(5):
        run.step(throttled=80)
    assert straggler.because(run.slowdowns.reason_of(1)).reason == f"{reason} (throttling)"


def shards(total_ms=10.0, data=0.0, throttled=0.0, processor=8.0, count=4):
    """The times of a step with so many shards that each take so long."""
    parts = (int(each * count * MS) for each in (total_ms, data, throttled, processor))
    names = ("shards_ns", "data_ns", "throttled_ns", "processor_ns")
    return StepTimes(**dict(zip(names, parts, strict=True)))


def usual(steps=20, ranks=(0, 1), **parts):
    """The slowdowns of two workers that usually take 10 ms for a shard, 8 ms of them computing."""
    slowdowns = Slowdowns()
    for _ in range(steps):
        assert slowdowns.observe(ranks, [shards(**parts)] * 2, [4, 4]) == []
    return slowdowns


def test_it_takes_three_steps_in_a_row_that_are_1_3_times_as_slow():
    slowdowns, well = usual(ranks=(3, 5), total_ms=1000), shards(1000)
    for total_ms in (1300, 1300, 1299) * 5:
        assert slowdowns.observe([3, 5], [well, shards(total_ms)], [4, 4]) == []
    steps = [slowdowns.observe([3, 5], [well, shards(1300)], [4, 4]) for _ in range(4)]
    assert steps == [[], [], [Slowdown(5, 1.3, SlowReason.CONTENTION)], []]
    assert slowdowns.reason_of(5) is SlowReason.CONTENTION
    assert slowdowns.reason_of(3) is None


def test_it_is_as_fast_as_before_after_three_steps_in_a_row_up_to_1_15():
    slowdowns, well = usual(total_ms=1000), shards(1000)
    for _ in range(3):
        slowdowns.observe([0, 1], [well, shards(2000)], [4, 4])
    for total_ms in (1150, 1150, 1151) * 5:
        assert slowdowns.observe([0, 1], [well, shards(total_ms)], [4, 4]) == []
    steps = [slowdowns.observe([0, 1], [well, shards(1150)], [4, 4]) for _ in range(4)]
    assert steps == [[], [], [Slowdown(1, 1.15, None)], []]
    assert slowdowns.reason_of(1) is None


@pytest.mark.parametrize(
    ("slow", "reason"),
    [
        ({"throttled": 500, "data": 1000}, SlowReason.THROTTLING),  # half of it
        ({"throttled": 490, "data": 750}, SlowReason.DATA),  # 250 ms are usual
        ({"throttled": 490, "data": 740}, SlowReason.CONTENTION),
        ({"data": 740, "processor": 660}, SlowReason.COMPUTE),  # 500 ms are usual
        ({"data": 740, "processor": 640}, SlowReason.CONTENTION),
    ],
)
def test_the_reason_is_what_at_least_half_of_the_additional_time_went_to(slow, reason):
    slowdowns = usual(total_ms=1000, data=250, processor=500)
    times = [shards(1000), shards(**({"total_ms": 2000, "processor": 500} | slow))]
    steps = [slowdowns.observe([0, 1], times, [4, 4]) for _ in range(3)]
    assert steps[-1] == [Slowdown(1, 2.0, reason)]


def test_another_reason_replaces_the_first_one_after_some_steps_in_a_row():
    slowdowns = usual()
    for _ in range(3):
        slowdowns.observe([0, 1], [shards(), shards(20)], [4, 4])
    reading = shards(200, data=190)
    steps = [slowdowns.observe([0, 1], [shards(), reading], [4, 4]) for _ in range(CERTAIN)]
    assert steps[:-1] == [[]] * (CERTAIN - 1)
    assert [each.reason for each in steps[-1]] == [SlowReason.DATA]
    # Its last three steps decide; one without the reason begins the count again.
    for _ in range(4):
        for _ in range(CERTAIN - 1):
            stopped = shards(9000, throttled=8990)
            assert slowdowns.observe([0, 1], [shards(), stopped], [4, 4]) == []
        for _ in range(CERTAIN):
            reading = shards(10**6, data=10**6 - 10)
            assert slowdowns.observe([0, 1], [shards(), reading], [4, 4]) == []


def test_shards_are_compared_whatever_their_number():
    slowdowns = usual()
    for count in (1, 2, 8, 16):
        times = [shards(), shards(count=count)]
        assert slowdowns.observe([0, 1], times, [4, count]) == []
    times = [shards(), shards(20, count=2)]
    steps = [slowdowns.observe([0, 1], times, [4, 2]) for _ in range(3)]
    assert steps[-1] == [Slowdown(1, 2.0, SlowReason.CONTENTION)]


def test_a_step_without_shards_counts_neither_for_nor_against():
    slowdowns = usual()
    for _ in range(2):
        slowdowns.observe([0, 1], [shards(), shards(20)], [4, 4])
    assert slowdowns.observe([0, 1], [shards(), StepTimes()], [4, 0]) == []
    found = slowdowns.observe([0, 1], [shards(), shards(20)], [4, 4])
    assert [each.rank for each in found] == [1]


@pytest.mark.parametrize(("other_ms", "is_named"), [(10, True), (15, True), (16, False)])
def test_a_worker_is_named_unless_another_slowed_down_nearly_as_much(other_ms, is_named):
    slowdowns = usual()
    times = [shards(other_ms), shards(20)]
    found = [each.rank for _ in range(3) for each in slowdowns.observe([0, 1], times, [4, 4])]
    assert (1 in found) == is_named


def test_a_worker_that_is_named_hides_no_other():
    slowdowns = usual()
    for _ in range(3):
        slowdowns.observe([0, 1], [shards(20), shards()], [4, 4])
    steps = [slowdowns.observe([0, 1], [shards(20), shards(20)], [4, 4]) for _ in range(3)]
    assert [each.rank for each in steps[-1]] == [1]


def test_what_is_usual_is_known_after_some_steps():
    slowdowns = usual(steps=LEAST_USUAL)
    slow = [shards(), shards(20)]
    assert [len(slowdowns.observe([0, 1], slow, [4, 4])) for _ in range(3)] == [0, 0, 1]
    slowdowns = usual(steps=LEAST_USUAL - 1)
    assert not any(slowdowns.observe([0, 1], slow, [4, 4]) for _ in range(20))


def test_all_slow_for_long_is_usual_and_one_that_is_slower_still_is_named():
    slowdowns = usual()
    for _ in range(NEW_USUAL + LEAST_USUAL):
        assert slowdowns.observe([0, 1], [shards(20), shards(20)], [4, 4]) == []
    steps = [slowdowns.observe([0, 1], [shards(20), shards(28)], [4, 4]) for _ in range(3)]
    assert steps[-1] == [Slowdown(1, 1.4, SlowReason.CONTENTION)]


def test_one_that_is_named_stays_slow_however_long_it_takes():
    slowdowns = usual()
    for _ in range(3):
        slowdowns.observe([0, 1], [shards(), shards(20)], [4, 4])
    for _ in range(3 * NEW_USUAL):
        assert slowdowns.observe([0, 1], [shards(), shards(20)], [4, 4]) == []
    assert slowdowns.reason_of(1) is SlowReason.CONTENTION


def test_a_new_member_is_compared_with_its_own_steps():
    slowdowns = usual()
    for _ in range(20):
        times = [shards(), shards(), shards(90)]
        assert slowdowns.observe([0, 1, 2], times, [4, 4, 4]) == []
    steps = [slowdowns.observe([1, 2], [shards(), shards(180)], [4, 4]) for _ in range(3)]
    assert steps[-1] == [Slowdown(2, 2.0, SlowReason.CONTENTION)]


def test_times_of_another_number_of_workers_are_refused():
    for times, counts in (([shards()], [4, 4]), ([shards()] * 2, [4]), ([shards()], [4])):
        with pytest.raises(ValueError, match="zip"):
            Slowdowns().observe([0, 1], times, counts)
