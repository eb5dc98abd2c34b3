"""Slowdowns: a worker that becomes slower is found within a few steps, with the reason."""

import random

import pytest

from holdfast.core.balance.slowdowns import Slowdowns
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
