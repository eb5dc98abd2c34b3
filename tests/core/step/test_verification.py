"""Which shards are checked by another worker."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.step.plan import Plan
from holdfast.core.step.verification import checked_shards, is_checked


@settings(max_examples=25)
@given(st.floats(0.001, 1.0), st.integers(0, 5000))
def test_the_share_of_checked_shards_is_at_least_the_rate(rate, first):
    count = sum(is_checked(number, rate) for number in range(first, first + 4000))
    assert count >= 4000 * rate - 5
    assert rate > 0.02 or count <= 4000 * rate * 1.2 + 5


def test_nothing_is_checked_at_rate_zero():
    assert not any(is_checked(number, 0.0) for number in range(1000))


CHECKED = [number for number in range(8000) if is_checked(number, 0.02)]


def counted(ratio):
    """The checked shards of a rank, and its count of all that it computes at each: it verifies a
    shard of another rank at `ratio` times every number that is checked there, or none.
    """
    own = [(number, True) for number in CHECKED]
    verified = [(number * ratio, False) for number in CHECKED] if ratio else []
    extra = 0
    for number, is_own in sorted([*own, *verified]):
        extra += not is_own
        yield number, int(number) + extra


@pytest.mark.parametrize("ratio", [None, 1 / 3, 0.5, 2 / 3, 1, 1.5, 2, 3])
def test_periodic_faults_are_met_whatever_they_count(ratio):
    counts, missed, cases = list(counted(ratio)), 0, 0
    for first in range(0, 5000, 370):
        soon = [count for number, count in counts if first <= number < first + 1000]
        later = [count for number, count in counts if first <= number < first + 3000]
        for period in range(2, 11):
            assert len({count % period for count in later}) == period
            missed += period - len({count % period for count in soon})
            cases += period
    assert missed < 0.03 * cases, "too few are met within a thousand shards"


def test_ranks_with_equal_shares_are_checked_in_the_same_steps():
    plan = Plan.even(8, 4)
    for step in range(500):
        counts = {len(checked_shards(plan, place, step, 0.1)) for place in range(4)}
        assert len(counts) == 1
