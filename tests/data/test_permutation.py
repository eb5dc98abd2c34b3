"""The permutation is a bijection, and depends on its key."""

import numpy as np
import pytest

from holdfast.data.permutation import BLOCK, Permutation


def assert_bijection(n, key=b"key"):
    images = Permutation(n, key).take(0, n)
    assert np.array_equal(np.sort(images), np.arange(n))


def test_it_is_a_bijection_for_all_sizes_to_2000():
    for n in range(1, 2001):
        assert_bijection(n)


@pytest.mark.parametrize("n", [65537, 2**18 + 1, 10**6 + 3])
def test_it_is_a_bijection_for_awkward_large_sizes(n):
    assert_bijection(n)


def test_any_range_equals_the_same_range_of_the_whole():
    n = 3 * BLOCK + 17
    whole = Permutation(n, b"key").take(0, n)
    one = Permutation(n, b"key")
    for start, stop in [(0, 1), (BLOCK - 1, BLOCK + 1), (5, 5), (17, 2 * BLOCK + 3), (n - 1, n)]:
        assert np.array_equal(one.take(start, stop), whole[start:stop])


def test_other_keys_give_other_orders():
    orders = {tuple(Permutation(50, bytes([key])).take(0, 50)) for key in range(100)}
    assert len(orders) == 100


def test_every_position_is_equally_likely():
    """Chi-squared over where position 0 goes; 99.99 % of fair permutations pass."""
    counts = np.bincount(
        [int(Permutation(16, key.to_bytes(4)).take(0, 1)[0]) for key in range(8000)], minlength=16
    )
    assert ((counts - 500) ** 2 / 500).sum() < 46
