"""Which shards are checked by another worker."""

import itertools

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


@pytest.mark.parametrize(
    ("stride", "rates"),
    [
        (1, (1.0, 0.6)),
        (2, (0.5, 0.34)),
        (3, (1 / 3, 0.25)),
        (5, (0.2, 1 / 6)),
        (7, (1 / 9, 0.1)),
        (23, (1 / 25, 0.04)),
        (47, (1 / 49,)),
        (97, (0.01,)),
        (113, (1 / 121,)),
    ],
)
def test_of_each_stride_of_shards_one_is_checked_where_the_stride_is_a_prime(stride, rates):
    for rate in rates:
        checks = [is_checked(number, rate) for number in range(60 * stride)]
        strides = [checks[first : first + stride] for first in range(0, len(checks), stride)]
        assert [sum(each) for each in strides] == [1] * 60


@pytest.mark.parametrize("stride", [2, 3, 5, 7, 23])
def test_each_place_of_a_stride_is_checked_about_as_often(stride):
    places = [
        number % stride for number in range(100 * stride**2) if is_checked(number, 1 / stride)
    ]
    counts = [places.count(place) for place in range(stride)]
    assert min(counts) > 80
    assert max(counts) < 120
    neighbours = sum(a == b for a, b in itertools.pairwise(places))
    assert neighbours < (0.7 if stride < 5 else 0.1) * len(places)


@pytest.mark.parametrize("prime", [2, 3, 5, 7, 41, 47, 211, 227])
def test_a_rate_of_one_in_a_prime_is_met_exactly_whatever_is_rounded(prime):
    assert sum(is_checked(number, 1 / prime) for number in range(10 * prime)) == 10


@pytest.mark.parametrize("place", range(3))
def test_shards_of_a_rank_are_numbered_through_all_steps(place):
    plan = Plan(counts=(3, 1, 4))
    own = plan.shards_of(place)
    checked = [checked_shards(plan, place, step, 0.1) for step in range(70)]
    numbers = [step * len(own) + own.index(each) for step in range(70) for each in checked[step]]
    assert numbers == [number for number in range(70 * len(own)) if is_checked(number, 0.1)]
