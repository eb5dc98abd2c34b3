"""The cut of a model's parts into stages."""

import itertools

import pytest

from holdfast.core.step.stages import cut


@pytest.mark.parametrize(
    ("costs", "number", "sizes"),
    [
        ([1, 1, 1, 1], 2, [2, 2]),
        ([1, 1, 1, 1, 1], 2, [3, 2]),
        ([5, 1, 1, 1, 1], 2, [1, 4]),
        ([0, 0, 3, 0, 3, 0], 2, [4, 2]),
        ([1, 2, 3], 3, [1, 1, 1]),
        ([0, 0, 0], 2, [2, 1]),
        ([7], 1, [1]),
    ],
)
def test_parts_are_cut_into_stages_of_about_equal_cost(costs, number, sizes):
    assert [len(stage) for stage in cut(costs, number)] == sizes


def test_no_cut_has_a_cheaper_stage():
    costs = [3, 1, 4, 1, 5, 9, 2, 6]
    for number in range(1, len(costs) + 1):
        stages = cut(costs, number)
        assert list(itertools.chain(*stages)) == list(range(len(costs)))
        most = max(sum(costs[at] for at in stage) for stage in stages)
        for borders in itertools.combinations(range(1, len(costs)), number - 1):
            pairs = itertools.pairwise([0, *borders, len(costs)])
            assert most <= max(sum(costs[first:end]) for first, end in pairs)
