"""Which shards are checked by another worker, and what a dispute tells."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.plan import Plan
from holdfast.core.verification import checked_shards, is_checked, wrong_ranks


@given(st.floats(0.001, 1.0), st.integers(0, 5000))
def test_the_share_of_checked_shards_is_at_least_the_rate(rate, first):
    count = sum(is_checked(number, rate) for number in range(first, first + 4000))
    assert count >= 4000 * rate - 5
    assert rate > 0.02 or count <= 4000 * rate * 1.2 + 5


def test_nothing_is_checked_at_rate_zero():
    assert not any(is_checked(number, 0.0) for number in range(1000))


@pytest.mark.parametrize("period", [2, 3, 4, 5, 6, 7, 8, 9, 10])
def test_a_periodic_fault_is_checked_within_a_thousand_shards(period):
    for phase in range(period):
        for first in range(0, 5000, 37):
            numbers = range(first, first + 1000)
            assert any(n % period == phase for n in numbers if is_checked(n, 0.02))


def test_ranks_with_equal_shares_are_checked_in_the_same_steps():
    plan = Plan.even(8, 4)
    for step in range(500):
        counts = {len(checked_shards(plan, place, step, 0.1)) for place in range(4)}
        assert len(counts) == 1


@pytest.mark.parametrize(
    ("first", "again", "wrong"),
    [
        ({0: 5, 1: 7}, {0: 5, 1: 5}, [1]),  # the second was wrong for once
        ({0: 5, 1: 7}, {0: 7, 1: 7}, [0]),
        ({0: 5, 1: 7}, {0: 5, 1: 7}, []),  # each insists
        ({0: 5, 1: 7}, {0: 6, 1: 7}, [0]),  # the first contradicts itself
        ({0: 5, 1: 7}, {0: 6, 1: 8}, []),
        ({0: 5, 1: 7}, {0: 5, 1: 7, 2: 7}, [0]),
        ({0: 5, 1: 7}, {0: 5, 1: 7, 2: 5}, [1]),
        ({2: 5, 0: 7}, {0: 7, 1: 7, 2: 7}, [2]),
        ({0: 5, 1: 7}, {0: 5, 1: 7, 2: 5, 3: 6, 4: 5}, [1, 3]),
    ],
)
def test_a_dispute_names_who_is_wrong(first, again, wrong):
    assert wrong_ranks(first, again) == wrong
