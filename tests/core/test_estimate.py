"""Estimates: the cost of a shard from the times of the last steps, and when it has changed."""

import math
import random

import pytest

from holdfast.core.balance.estimate import (
    EVERY,
    FEW,
    LEAST_SPREAD,
    UNKNOWN_SPREAD,
    WINDOW,
    Estimate,
    median,
)


def estimate_of(*samples, fixed_s=0.0):
    estimate = Estimate()
    changes = [estimate.add(sample, fixed_s) for sample in samples]
    assert not any(changes)
    return estimate


@pytest.mark.parametrize(
    ("samples", "middle"), [([3], 3), ([4, 2], 3), ([9, 1, 2], 2), ([9, 1, 2, 4], 3)]
)
def test_the_median_is_the_middle_one_or_the_mean_of_the_middle_two(samples, middle):
    assert median(samples) == middle


def test_nothing_is_known_without_a_sample():
    estimate = Estimate()
    assert (estimate.samples, estimate.per_shard_s, estimate.fixed_s) == (0, 0.0, 0.0)
    assert estimate.spread == UNKNOWN_SPREAD


@pytest.mark.parametrize(
    ("samples", "cost"),
    [
        ([2.0], 2.0),
        ([2.0, 2.2], 2.1),
        ([2.0, 2.2, 2.1, 9.0], 2.15),  # the middle two
        ([2.2, 2.1, 2.3, 0.5, 9.0], 2.2),
        ([2.2, 2.1, 2.3, 0.5, 2.4, 9.0, 2.5, 2.6], 2.35),  # the middle four
    ],
)
def test_the_cost_is_the_mean_of_the_middle_half(samples, cost):
    estimate = Estimate()
    for sample in samples:
        estimate.add(sample, 0.0)
    assert estimate.per_shard_s == pytest.approx(cost)


def test_the_fixed_part_is_the_median():
    estimate = Estimate()
    for rest in (0.1, 7.0, 0.3):
        estimate.add(1.0, rest)
    assert estimate.fixed_s == 0.3


def test_the_spread_is_known_from_some_samples_on():
    estimate = estimate_of(*[2.0] * (FEW - 1))
    assert estimate.spread == UNKNOWN_SPREAD
    assert estimate.variance == pytest.approx((2.0 * UNKNOWN_SPREAD) ** 2 / (FEW - 1))
    estimate.add(2.0, 0.0)
    assert estimate.spread == LEAST_SPREAD
    assert estimate.variance == pytest.approx((2.0 * LEAST_SPREAD) ** 2 / FEW)


def test_the_spread_is_about_the_standard_deviation_of_uniform_noise():
    noises = [(2 * each + 1) / WINDOW - 1 for each in range(WINDOW)]
    random.Random(0).shuffle(noises)
    estimate = estimate_of(*[2.0 + 0.2 * noise for noise in noises])
    assert estimate.per_shard_s == pytest.approx(2.0, rel=0.01)
    assert estimate.spread == pytest.approx(0.1 / math.sqrt(3), rel=0.2)


def test_only_the_last_samples_count():
    estimate = estimate_of(*[2.0] * WINDOW, *[2.02] * (WINDOW + EVERY), fixed_s=0.5)
    assert estimate.samples == WINDOW
    assert estimate.per_shard_s == pytest.approx(2.02)


def test_the_cost_follows_a_slow_drift():
    drift = [2.0 * 1.0003**step for step in range(300)]
    estimate = estimate_of(*drift)
    lowest, highest = drift[-1 - WINDOW - EVERY], drift[-1 - EVERY]
    assert lowest < estimate.per_shard_s < highest


@pytest.mark.parametrize("factor", [2.0, 0.5, 1000.0, 0.001])
def test_a_change_is_found_in_its_second_step_and_one_slow_step_is_none(factor):
    estimate = estimate_of(*[2.0] * 20, fixed_s=0.5)
    assert not estimate.add(2.0 * factor, 0.5)
    assert not estimate.add(2.0, 0.5)
    assert estimate.per_shard_s == pytest.approx(2.0)
    for _ in range(20):
        assert not estimate.add(2.0, 0.5)
    assert not estimate.add(2.0 * factor, 0.7)
    assert estimate.add(2.0 * factor, 0.9)
    assert (estimate.samples, estimate.per_shard_s) == (2, 2.0 * factor)
    assert estimate.fixed_s == pytest.approx(0.8)


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_a_change_is_found_from_the_second_sample_on(factor):
    estimate = estimate_of(2.0, 2.0 * factor)
    assert estimate.add(4 * factor * factor, 0.0)
    assert estimate.samples == 2, "those since the change"


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_after_a_change_one_slow_step_is_none_again(factor):
    estimate = estimate_of(*[2.0] * 20, 2.0 * factor)
    assert estimate.add(2.0 * factor, 0.0)
    assert not estimate.add(2.0 * factor * factor, 0.0)


@pytest.mark.parametrize("factor", [1.05, 1 / 1.05])
def test_a_small_change_is_found_in_some_steps_and_only_samples_since_then_stay(factor):
    estimate = estimate_of(*[2.0] * WINDOW, *[2.0 * factor] * 6)
    assert estimate.add(2.0 * factor, 0.0)
    assert (estimate.samples, estimate.per_shard_s) == (7, pytest.approx(2.0 * factor))


def test_as_much_noise_as_is_assumed_at_first_is_no_change():
    estimate_of(*[2.0, 2.2, 1.9] * 5)
    estimate_of(2.0, 2.8, 3.9)  # a slow start
