"""Which ranks are wrong when digests differ."""

import pytest

from holdfast.core.step.verification import most_common, wrong_ranks


@pytest.mark.parametrize(
    ("digests", "wrong"),
    [
        ({0: 5}, []),
        ({0: 5, 1: 5}, []),
        ({0: 5, 1: 7}, []),  # either may be
        ({0: 5, 1: 7, 2: 5}, [1]),
        ({0: 5, 2: 7, 3: 7}, [0]),
        ({0: 5, 1: 7, 2: 6}, []),
        ({0: 5, 1: 7, 2: 5, 3: 7}, []),
        ({0: 7, 1: 5, 2: 5, 3: 5, 4: 6}, [0, 4]),
        ({8: 7, 1: 6, 2: 5, 3: 5, 4: 5}, [1, 8]),
    ],
)
def test_the_majority_of_replicas_is_right(digests, wrong):
    assert wrong_ranks(digests) == wrong


def test_the_most_common_digest_need_not_have_a_majority():
    assert most_common({0: 5, 1: 7, 2: 7}) == (7, True)
    assert most_common({0: 5, 1: 7, 2: 7, 3: 6}) == (7, False)


@pytest.mark.parametrize(("recomputed", "wrong"), [(5, []), (7, [2])])
def test_a_rank_whose_result_another_one_recomputes_differently_is_wrong(recomputed, wrong):
    assert wrong_ranks({0: recomputed}, {2: 5}) == wrong


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
def test_a_dispute_about_a_shard_names_the_wrong_ranks(first, again, wrong):
    assert wrong_ranks(again, first) == wrong
