"""The interval between checkpoints follows from what they cost and how often they are needed."""

import math

import pytest

from holdfast.core.checkpoints.interval import FIRST_S, MAX_S, PRIOR_S, CheckpointInterval


def saved(stall_s, write_s=0.1, failures=0):
    interval = CheckpointInterval(None, now=0.0)
    interval.on_saved(stall_s, write_s)
    for _ in range(failures):
        interval.on_restored()
    return interval


@pytest.mark.parametrize("given_s", [0.0, 20.0])
def test_an_interval_that_the_job_sets_stays(given_s):
    interval = CheckpointInterval(given_s, now=0.0)
    interval.on_saved(0.1, 100.0)
    interval.on_restored()
    assert interval.seconds(50.0) == given_s


def test_the_first_checkpoint_comes_early():
    assert CheckpointInterval(None, now=5.0).seconds(5.0) == FIRST_S


def test_the_interval_loses_least():
    best_s = saved(0.05).seconds(0.0)
    assert best_s == pytest.approx(math.sqrt(2 * 0.05 * PRIOR_S))

    def loss(interval_s):
        """The share of time that is lost to stalls, and to what is computed again."""
        return 0.05 / interval_s + interval_s / 2 / PRIOR_S

    assert loss(best_s) < min(loss(best_s * 1.1), loss(best_s / 1.1))


def test_more_failures_mean_more_checkpoints_and_time_without_one_fewer():
    often, seldom = saved(0.05, failures=8), saved(0.05)
    assert often.seconds(0.0) == pytest.approx(seldom.seconds(0.0) / 3)
    assert seldom.seconds(PRIOR_S) == pytest.approx(seldom.seconds(0.0) * math.sqrt(2))


def test_the_interval_has_limits():
    assert saved(0.001, write_s=60.0).seconds(0.0) == 120.0
    assert saved(100.0).seconds(0.0) == MAX_S


def test_the_interval_depends_on_the_time_since_the_start_and_not_on_the_clock():
    late = CheckpointInterval(None, now=5e6)
    late.on_saved(0.05, 0.1)
    assert late.seconds(5e6 + 9.0) == pytest.approx(saved(0.05).seconds(9.0))
